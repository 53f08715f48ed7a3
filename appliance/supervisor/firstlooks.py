"""The first look at an engine that is suspected: where its processes are, before anybody knows whether it hangs.

Taken once for each silence, beside the loop, and of suspected engines alone. It reads memory and stops nobody, and the
launcher ends what it asks after its own deadline. The evidence before a kill is the second look; what has moved
meanwhile is not stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from appliance import clock

from .sources import Look, Missing, Subject, ask_launcher

SubjectOf = Callable[[str, str], Subject]  # instance, run


@dataclass(slots=True)
class _Suspect:
    run: str
    task: asyncio.Task[Look | None] = field(compare=False)


class FirstLooks:
    """Owner of the looks' tasks. Its methods run in the loop."""

    def __init__(self, subject: SubjectOf) -> None:
        self._subject = subject
        self._suspects: dict[str, _Suspect] = {}

    def follow(self, suspected: Mapping[str, str], taken_down: Mapping[str, str]) -> None:
        """Instances that are suspected now, and those that are being taken down, each with its run.

        Who is new among the suspected is looked at; who is neither any more is forgotten.
        """
        known = {**suspected, **taken_down}
        for instance in [name for name, suspect in self._suspects.items() if known.get(name) != suspect.run]:
            self._suspects.pop(instance).task.cancel()
        for instance, run in suspected.items():
            if instance not in self._suspects and instance not in taken_down:
                task = asyncio.ensure_future(_look(self._subject(instance, run)))
                self._suspects[instance] = _Suspect(run, task)

    def of(self, instance: str, run: str) -> Look | None:
        """The first look at a run; None where none was taken, or it is not over yet."""
        known = self._suspects.get(instance)
        if known is None or known.run != run or not known.task.done() or known.task.cancelled():
            return None
        return known.task.result() if known.task.exception() is None else None

    async def settled(self, instance: str) -> None:
        """Wait for a look that is under way: two at once would tell nothing. Bounded by the launcher's deadline."""
        known = self._suspects.get(instance)
        if known is not None:
            await asyncio.wait({known.task})

    async def close(self) -> None:
        """No look is under way any more."""
        tasks = [known.task for known in self._suspects.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._suspects.clear()


async def _look(subject: Subject) -> Look | None:
    at = clock.monotonic()
    try:
        return Look(at, await ask_launcher(subject, "stacks"))
    except Missing:
        return None
