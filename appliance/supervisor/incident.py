"""One incident from its questions to its place on disk, within 30 seconds whatever hangs.

All sources are asked at once, each with its own deadline; what fails is named in `incident.json` with the reason, and
the rest is kept. Every text passes the redactor before it is written. On a disk that is nearly full, or that fills up
meanwhile, what incident.json says is all that is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from appliance import clock
from appliance.host.incidents import Store
from appliance.policy.incidents import BUNDLE_BYTES, FILE_BYTES, SPARE_BYTES
from appliance.wire.incident import Incident
from appliance.wire.redact import Redactor, secrets_in

from .sources import Missing, Source, Subject, since_first, sources

ALL_S = 22.0  # for the answers; redacting and writing have the rest of the 30 s
WRITE_S = 8.0


class Lost(Exception):
    """No bundle could be kept; the message says why."""


async def collect(about: Incident, subject: Subject, store: Store) -> Incident:
    """Ask all sources and keep the bundle; returns the incident as it was kept. Raises Lost.

    Takes at most `ALL_S` and `WRITE_S`; a disk that does not answer is not waited for.
    """
    begun = clock.monotonic()
    redactor = Redactor(secrets_in(subject.effective.raw))
    told = replace(about, reason=redactor.text(about.reason), evidence=tuple(map(redactor.text, about.evidence)))
    try:
        partial, spare = await asyncio.wait_for(asyncio.to_thread(_begin, told, store), WRITE_S)
        found: Mapping[str, str] = {}
        missing = {"*": "the disk is nearly full"}
        if spare:
            found, missing = await ask_all(sources(subject), ALL_S)
        earlier, moved = since_first(subject.first, found, clock.monotonic())
        found = {**found, **earlier} if spare else found
        told = replace(told, evidence=(*told.evidence, *map(redactor.text, moved)))
        kept = replace(told, facts=subject.facts, took_s=round(clock.monotonic() - begun, 1))
        writing = asyncio.to_thread(_write, kept, found, missing, partial, store, redactor)
        return await asyncio.wait_for(writing, WRITE_S)
    except asyncio.TimeoutError:
        raise Lost(f"{store.root} does not take files within {WRITE_S:.0f} s") from None
    except OSError as error:
        await asyncio.to_thread(store.discard, about.id)
        raise Lost(f"{store.root}: {(error.strerror or 'error').lower()}") from error


async def ask_all(asked: Mapping[str, Source], limit_s: float) -> tuple[dict[str, str], dict[str, str]]:
    """The files that the sources gave, and why others are missing; takes `limit_s` at most."""
    tasks = {name: asyncio.ensure_future(source()) for name, source in asked.items()}
    await asyncio.wait(tasks.values(), timeout=limit_s)
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, task in tasks.items():
        if not task.done():
            task.cancel()
            missing[name] = f"not there within {limit_s:.0f} s"
        elif isinstance(error := task.exception(), Missing):
            missing[name] = str(error)
        elif error is not None:
            missing[name] = f"{type(error).__name__}: {error}"
        else:
            found |= task.result()
            if name not in task.result():
                missing[name] = "nothing was found"
    return found, missing


def bounded(text: str, limit: int = FILE_BYTES) -> bytes:
    """A text as bytes, the end of it where it is too long, beginning with a whole line."""
    data = text.encode(errors="replace")
    return data if len(data) <= limit else data[-limit:].partition(b"\n")[2]


def _begin(about: Incident, store: Store) -> tuple[str, bool]:
    """The directory with a first incident.json, and whether there is room for more."""
    partial = store.begin(about.id)
    store.describe(partial, about)
    return partial, store.free() > SPARE_BYTES


def _write(about: Incident, found: Mapping[str, str], missing: Mapping[str, str], partial: str, store: Store,
           redactor: Redactor) -> Incident:  # fmt: skip
    """Redact and write every file, then give the bundle its name; a file that does not fit is missing."""
    collected, lacking, room = {}, dict(missing), BUNDLE_BYTES
    for name, text in sorted(found.items()):
        content = bounded(redactor.file(name, text))
        if len(content) > room:
            lacking[name] = "the bundle is full"
            continue
        try:
            store.put(partial, name, content)
        except OSError as error:
            lacking[name] = f"cannot be written: {(error.strerror or 'error').lower()}"
            continue
        collected[name] = len(content)
        room -= len(content)
    whole = replace(about, collected=collected, missing={key: redactor.text(why) for key, why in lacking.items()})
    try:
        store.describe(partial, whole)
    except OSError:  # the first one stays: it names the incident and its reason
        whole = about
    store.publish(partial, about.id)
    return whole
