"""Which requests to one engine are refused because the engine crashed twice under them.

    in flight at a crash          suspected: sent again to no other replica by the gateway itself, else as before
    at two, alone in that         refused for `KEPT_S`
    at two, together with others  each runs alone among those until it is served, or is the one that runs at a crash
    served                        cleared at once, whatever was known

So an innocent request that a client sends again is refused only where nothing tells it from the guilty one, and at most
one is refused for each crash. A crash is a death that a request can bring about (`OF_A_REQUEST`): not `engine-died`,
where vLLM is gone without an error of its own, as when somebody kills it; not the host's memory, not hardware, not a
hang in which a process may merely have been stopped. Bodies are known by a number; what is not heard of for `KEPT_S` is
forgotten. Nor is a crash of any cause counted that began with a process's SIGKILL (`failure.Failure.killed`).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

KEPT_S = 3600.0  # an engine's budget of restarts is counted within the same time (`supervisor.restart.window`)
MOST = 4096  # bodies known at once; the oldest are forgotten first
CRASHES = 2
OF_A_REQUEST = frozenset(
    {"engine-exception", "cuda-fault", "cuda-oom-serving", "worker-died", "poison-request"}
    | {"hang-livelock", "hang-kernel"}
)


class Standing(enum.Enum):
    """What is thought of a body."""

    FREE = "free"
    SUSPECT = "suspect"
    ALONE = "alone"  # runs only while no other one of its kind does
    REFUSED = "refused"


@dataclass(slots=True)
class _Case:
    crashes: int
    at: float  # of the last one
    refused: bool = False


class Quarantine:
    """What is known of the bodies sent to one engine, all its replicas together. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self.cases: dict[int, _Case] = {}  # the oldest first; while there is none, nobody needs to ask

    def standing(self, body: int, now: float) -> Standing:
        """What is thought of a body."""
        case = self._case(body, now)
        if case is None:
            return Standing.FREE
        if case.refused:
            return Standing.REFUSED
        return Standing.ALONE if case.crashes >= CRASHES else Standing.SUSPECT

    def left_s(self, body: int, now: float) -> float:
        """For how long it will still be known."""
        case = self._case(body, now)
        return 0.0 if case is None else case.at + KEPT_S - now

    def crashed(self, bodies: Collection[int], now: float) -> int | None:
        """An engine crashed with these in flight. The one that is refused from now on, None where none can be told."""
        for body in bodies:
            before = self._case(body, now)
            self.cases.pop(body, None)
            self.cases[body] = _Case(1, now) if before is None else _Case(before.crashes + 1, now, before.refused)
        for body in list(self.cases)[: max(len(self.cases) - MOST, 0)]:
            del self.cases[body]
        known = {body: self.cases[body].crashes for body in bodies if body in self.cases}
        worst = _most(known.values())
        guilty = [body for body, crashes in known.items() if crashes == worst]
        if worst < CRASHES or len(guilty) > 1:
            return None
        self.cases[guilty[0]].refused = True
        return guilty[0]

    def served(self, body: int) -> None:
        """It was answered: it is as good as any other."""
        self.cases.pop(body, None)

    def suspects(self, bodies: Iterable[int], now: float) -> int:
        """How many of these share the most earlier crashes: if the engine crashes now, one alone would be refused."""
        cases = [case for body in bodies if (case := self._case(body, now)) is not None]
        worst = _most(case.crashes for case in cases)
        return sum(case.crashes == worst for case in cases)

    def counts(self, now: float) -> tuple[int, int]:
        """How many are suspected, and how many refused."""
        for body in list(self.cases):
            self._case(body, now)
        refused = sum(case.refused for case in self.cases.values())
        return len(self.cases) - refused, refused

    def _case(self, body: int, now: float) -> _Case | None:
        """The case of a body; an old one is forgotten."""
        case = self.cases.get(body)
        if case is not None and now - case.at >= KEPT_S:
            del self.cases[body]
            return None
        return case


def _most(crashes: Iterable[int]) -> int:
    return max(crashes, default=0)
