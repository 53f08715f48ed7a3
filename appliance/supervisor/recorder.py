"""Every incident of the supervisor: which are kept, which are being collected, what others are told of them.

The only writer of the directory of incidents. Collecting never delays a decision: a death's bundle is made beside the
loop, by a task that this object owns. A kill waits for its bundle, which has a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from appliance.host.incidents import Bundle, Store
from appliance.host.journal import NOTICE, WARNING, Journal, message_id
from appliance.policy.incidents import Kept, counted_in, to_remove
from appliance.quantity import format_size
from appliance.wire.incident import AGAIN_KEPT, Incident, incident_id
from appliance.wire.redact import Redactor, secrets_in

from . import story
from .incident import WRITE_S, Lost, bounded, collect
from .sources import Subject

T = TypeVar("T")
CLOSE_S = 12.0  # within the unit's TimeoutStopSec=
SHOWN = 5  # in fleet.json and `status`


class Recorder:
    """The incidents of one supervisor."""

    def __init__(self, root: str, journal: Journal) -> None:
        self.store = Store(root)
        self._journal = journal
        self._bundles: dict[str, Bundle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self.open: dict[str, str] = {}  # instance -> the incident that its present trouble belongs to

    def load(self) -> None:
        """Read what is kept and remove what a crash left half-written; blocks. Raises OSError."""
        self.store.clean()
        self._bundles = {bundle.incident.id: bundle for bundle in self.store.all()}

    @property
    def known(self) -> frozenset[str]:
        """The ids of all that is kept, or is being collected."""
        return frozenset(self._bundles)

    @property
    def recent(self) -> list[dict[str, object]]:
        """The last incidents, the newest first, as others are shown them."""
        newest = sorted(self._bundles.values(), key=lambda bundle: bundle.incident.at, reverse=True)[:SHOWN]
        return [
            {
                "id": one.id,
                "engine": one.engine,
                "at": round(one.at, 3),
                "kind": one.kind,
                "cause": one.cause or None,
                "reason": one.reason,
                "count": 1 + len(one.again),
            }
            for one in (bundle.incident for bundle in newest)
        ]

    def name(self, engine: str, cause: str, at: float) -> str:
        """A name that no incident has yet."""
        wanted = incident_id(at, engine, cause)
        taken = {*self._bundles, *self.open.values()}
        return next(name for name in (wanted, *(f"{wanted}-{n}" for n in range(2, 100))) if name not in taken)

    def death(self, about: Incident, subject: Callable[[], Subject]) -> str:
        """A death became known: its own bundle is begun, or it is counted in an earlier one; the incident's id.

        `about` has no id yet. Returns at once.
        """
        kept = [_kept(bundle) for bundle in self._bundles.values()]
        earlier = counted_in(kept, about.engine, about.cause, about.at)
        if earlier:
            self.open[about.engine] = earlier
            self._spawn(self._count(earlier, about.at), f"count {earlier}")
            return earlier
        about = replace(about, id=self.name(about.engine, about.cause, about.at))
        self._enter(about)
        self._spawn(self._collect(about, subject()), f"incident {about.id}")
        return about.id

    async def record(self, about: Incident, subject: Subject) -> None:
        """The bundle before a kill; returns when it is on disk, or when that was found impossible and told."""
        self._enter(about)
        await self._collect(about, subject)

    async def add(self, id_: str, name: str, text: str, subject: Subject) -> None:
        """Add to a file of a kept bundle what became known later."""
        redactor = Redactor(secrets_in(subject.effective.raw))

        def write() -> int:
            try:
                with open(self.store.path(id_, name), encoding="utf-8", errors="replace") as file:
                    earlier = file.read()
            except OSError:
                earlier = ""
            content = bounded(earlier + redactor.text(text))
            self.store.put(self.store.path(id_), name, content)
            return len(content)

        about = self._bundles[id_].incident if id_ in self._bundles else None
        if about is None or (size := await self._written(about, write)) is None:
            return
        missing = {key: why for key, why in about.missing.items() if key != name}
        await self._describe(replace(about, collected={**about.collected, name: size}, missing=missing))

    async def conclude(self, id_: str, outcome: str) -> None:
        """What became of the kill that a bundle was made for."""
        if id_ in self._bundles:
            await self._describe(replace(self._bundles[id_].incident, outcome=outcome))

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """Let what is being collected come to its end, for so long; a bundle that is not whole then is removed at the
        next start."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _enter(self, about: Incident) -> None:
        self._bundles[about.id] = Bundle(about, {})
        self.open[about.engine] = about.id

    async def _collect(self, about: Incident, subject: Subject) -> None:
        try:
            kept = await collect(about, subject, self.store)
        except Lost as lost:
            self._bundles.pop(about.id, None)
            text = f"{about.engine}: no evidence is kept: {lost}"
            self._tell(WARNING, "incident-lost", text, about)
            return
        again = self._bundles[about.id].incident.again if about.id in self._bundles else ()
        self._bundles[about.id] = Bundle(kept, dict(kept.collected))
        if again:  # it died again meanwhile
            await self._describe(replace(kept, again=again))
        size = format_size(sum(kept.collected.values()))
        lacking = f", without {', '.join(sorted(kept.missing))}" if kept.missing else ""
        where = f"{self.store.path(about.id)}: {len(kept.collected)} files, {size}{lacking}"
        text = f"{about.engine}: evidence is in {where}"
        self._tell(NOTICE, "incident-kept", text, kept)
        await self._make_room()

    async def _count(self, id_: str, at: float) -> None:
        about = self._bundles[id_].incident
        await self._describe(replace(about, again=(*about.again, round(at, 3))[-AGAIN_KEPT:]))

    async def _describe(self, about: Incident) -> None:
        """Replace what a bundle says of itself; one that is being collected yet gets it with its last file."""
        self._bundles[about.id] = Bundle(about, dict(about.collected))
        directory = self.store.path(about.id)
        await self._written(about, lambda: self.store.describe(directory, about))

    async def _make_room(self) -> None:
        for id_ in to_remove([_kept(bundle) for bundle in self._bundles.values()]):
            del self._bundles[id_]
            await asyncio.to_thread(self.store.remove, id_)

    async def _written(self, about: Incident, write: Callable[[], T]) -> T | None:
        """Write in a thread, one at a time; a fault is told, and None."""
        async with self._writing:
            try:
                return await asyncio.wait_for(asyncio.to_thread(write), WRITE_S)
            except FileNotFoundError:
                return None  # it is being collected yet, or was removed by hand
            except (OSError, asyncio.TimeoutError) as error:
                text = f"{about.engine}: the evidence cannot be completed: {error or 'the disk does not answer'}"
                self._tell(WARNING, "incident-lost", text, about)
                return None

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"{task.get_name()}: {type(error).__name__}: {error}"
            self._journal.log(WARNING, text, MESSAGE_ID=message_id("supervisor-fault"), LLM_EVENT="supervisor-fault")

    def _tell(self, priority: int, event: str, text: str, about: Incident) -> None:
        story.line(
            self._journal, priority, text, event=event, instance=about.engine, cause=about.cause, incident=about.id
        )  # fmt: skip


def _kept(bundle: Bundle) -> Kept:
    about = bundle.incident
    return Kept(about.id, about.engine, about.cause, about.at, bundle.size, about.kind)
