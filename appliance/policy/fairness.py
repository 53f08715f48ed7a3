"""Who is next in a queue: fair by tokens between keys, first come first served within a key, classes with floors.

Between the keys of a class: start-time fair queueing. A key's calls are laid one after the other on a line of tokens;
the key whose next call begins first on it is next. A key that comes back begins at the line's present place, so it
neither owes for what it used while nobody waited nor has saved up for what it did not use. One key's five hundred long
prompts thus stand behind one another, not before another key's short one.

Between classes: the highest that waits, but for the floors: every class that waits earns its floor's share of each
token that is admitted, and is next when it has earned what its first call costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from appliance.config.model import PRIORITIES, Priority

# The share of admitted tokens that a class gets at least while it waits; the highest needs none.
FLOORS: dict[Priority, float] = {"interactive": 0.0, "standard": 0.2, "batch": 0.05}


class Queued(Protocol):
    """What the order must know of a call. `number` is unique; `weight` is its cost in tokens."""

    @property
    def number(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def priority(self) -> Priority: ...


T = TypeVar("T", bound=Queued)


class _Class(Generic[T]):
    """One priority class: its keys that wait, and its line of tokens."""

    __slots__ = ("earned", "floor", "line", "place", "waiting")

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.waiting: dict[str, dict[int, T]] = {}  # keys that wait, each with its calls in order
        self.place: dict[str, float] = {}  # where a key's next call begins on the line
        self.line = 0.0  # the present place
        self.earned = 0.0

    def next(self) -> T:
        """The first call of the key that begins first; of equals the one that waits longest."""
        line, place = self.line, self.place
        best: T | None = None
        begins = 0.0
        for key, calls in self.waiting.items():
            start = max(place.get(key, 0.0), line)
            if best is None or start <= begins:
                first = next(iter(calls.values()))
                if best is None or start < begins or first.number < best.number:
                    best, begins = first, start
        assert best is not None
        return best

    def starts(self, key: str) -> Iterator[tuple[float, int]]:
        """Where each call of a key begins on the line, with its number: the order of the class, if nobody comes."""
        start = max(self.place.get(key, 0.0), self.line)
        for call in self.waiting[key].values():
            yield start, call.number
            start += max(call.weight, 1)

    def ahead(self, call: T) -> int:
        """How many of the class go before one that waits in it."""
        calls = self.waiting[call.key]
        if len(self.waiting) == 1 and next(reversed(calls)) == call.number:  # as most that come, while one key waits
            return len(calls) - 1
        own, mine = next(one for one in enumerate(self.starts(call.key)) if one[1][1] == call.number)
        others = (self.starts(key) for key in self.waiting if key != call.key)
        return own + sum(1 for starts in others for _ in takewhile(mine.__gt__, starts))


class FairQueue(Generic[T]):
    """Waiting calls in fair order. Its size is bounded by who uses it."""

    def __init__(self) -> None:
        self.calls: dict[int, T] = {}  # that wait, by arrival; nobody else changes it
        self._classes = {name: _Class[T](FLOORS[name]) for name in PRIORITIES}  # highest first
        self._positions: dict[int, int] = {}  # of the order as it was last asked for; empty once it changed

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[T]:
        """Every waiting call, by arrival."""
        return iter(self.calls.values())

    def __contains__(self, number: int) -> bool:
        return number in self.calls

    def push(self, call: T) -> None:
        """A call begins to wait."""
        self._positions = {}
        self.calls[call.number] = call
        self._classes[call.priority].waiting.setdefault(call.key, {})[call.number] = call

    def remove(self, number: int) -> T | None:
        """A call waits no more, for whatever reason; None when it did not."""
        call = self.calls.pop(number, None)
        if call is not None:
            self._positions = {}
            group = self._classes[call.priority]
            calls = group.waiting[call.key]
            del calls[number]
            if not calls:
                del group.waiting[call.key]
                if not group.waiting:
                    group.earned = 0.0
        return call

    def next(self) -> T:
        """Who is admitted next; the queue is not empty."""
        heads = [(group.earned, group.next()) for group in self._classes.values() if group.waiting]
        return heads[_chosen(heads)][1]

    def position(self, number: int) -> int:
        """Where a waiting call stands in the order of admissions, from 1; it changes as others come, go and end."""
        call = self.calls[number]
        if sum(bool(group.waiting) for group in self._classes.values()) == 1:
            return self._classes[call.priority].ahead(call) + 1
        if not self._positions:
            self._positions = {other.number: place for place, other in enumerate(self.order(), 1)}
        return self._positions[number]

    def position_of_new(self, call: T) -> int:
        """Where a call would stand if it came now."""
        self.push(call)
        position = self.position(call.number)
        self.remove(call.number)
        return position

    def order(self) -> Iterator[T]:
        """All that wait, in the order of their admissions if nobody else came; not while the queue changes."""
        groups = [group for group in self._classes.values() if group.waiting]
        lines = [
            [self.calls[number] for _, number in sorted(start for key in group.waiting for start in group.starts(key))]
            for group in groups
        ]
        earned = [group.earned for group in groups]
        places = [0] * len(groups)
        while open_ := [n for n, line in enumerate(lines) if places[n] < len(line)]:
            chosen = open_[_chosen([(earned[n], lines[n][places[n]]) for n in open_])]
            call = lines[chosen][places[chosen]]
            places[chosen] += 1
            for n in open_:
                earned[n] += groups[n].floor * max(call.weight, 1)
            earned[chosen] = max(earned[chosen] - max(call.weight, 1), 0.0)
            yield call

    def admitted(self, call: T) -> None:
        """Count a call that was let in, from the queue (before it is removed) or past an empty one."""
        group, key = self._classes[call.priority], call.key
        weight = max(call.weight, 1)
        group.line = max(group.place.get(key, 0.0), group.line)
        group.place[key] = group.line + weight
        if self.calls:
            self._positions = {}
            for one in self._classes.values():
                if one.waiting:
                    one.earned += one.floor * weight
            group.earned = max(group.earned - weight, 0.0)

    def correct(self, call: T, used: int) -> None:
        """An admitted call has ended and used another number of tokens than it was counted with."""
        if self._positions:
            self._positions = {}
        place = self._classes[call.priority].place
        place[call.key] = place.get(call.key, 0.0) + used - max(call.weight, 1)

    def greediest(self, key: str) -> T | None:
        """The last call of the key that has most places, when that is at least two more than `key` has; else None."""
        counts: dict[str, int] = {}
        for call in self.calls.values():
            counts[call.key] = counts.get(call.key, 0) + 1
        worst = max(counts, key=lambda name: counts[name], default=None)
        if worst is None or counts[worst] < counts.get(key, 0) + 2:
            return None
        return next(call for call in reversed(self.calls.values()) if call.key == worst)


def _chosen(heads: Sequence[tuple[float, Queued]]) -> int:
    """Which class is next: what each has earned and its first call, highest class first."""
    owed = [n for n, (earned, first) in enumerate(heads) if n and earned >= max(first.weight, 1)]
    return max(owed, key=lambda n: heads[n][0], default=0)
