"""What is compiled for an engine, kept apart by what it was compiled for, and how much of it is kept.

`key` names a directory after the runtime, the GPU and the model: a new runtime or another model never meets files that
were not compiled for it, and a rollback finds its own. `superfluous` says which directories are kept no longer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KEPT = 3  # beside the one in use: the runtime before, the model before, and one more
KEPT_BROKEN = 1  # moved away, for who wants to know what was wrong with it
_BROKEN = re.compile(r"\.broken-\d+$")
_PART = 32  # characters of a part of a key: a name among paths, not a description


@dataclass(frozen=True, slots=True)
class Superfluous:
    """A directory that is to go, and why."""

    name: str
    reason: str


def key(runtime: str, gpus: Iterable[str], model: str, build: str = "") -> str:
    """The directory for a runtime (`VERSION-DEVICE`), the models of the engine's GPUs and a model's reference.

    Each part is readable; the last six digits tell models of the same last name apart, and runtimes of the same name
    that were built of other things (`build`).
    """
    told = f"{build}\0{model}" if build else model
    digest = hashlib.blake2s(told.encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()
    parts = [_plain(runtime), "+".join(sorted({_plain(gpu) for gpu in gpus})), f"{_plain(_last(model))}-{digest}"]
    return "_".join(part for part in parts if part)


def broken(name: str, present: Iterable[str]) -> str:
    """Under which name a directory is moved away: one that nothing has yet."""
    taken, number = set(present), 1
    while f"{name}.broken-{number}" in taken:
        number += 1
    return f"{name}.broken-{number}"


def superfluous(used: Mapping[str, float], current: str) -> tuple[Superfluous, ...]:
    """Which of the directories go: `used` is when each was used last, `current` the one that is used now.

    Order counts, not age: an engine that ran for a year still finds what it had before.
    """
    newest = sorted((name for name in used if name != current), key=lambda name: (-used[name], name))
    good = [name for name in newest if not _BROKEN.search(name)]
    moved = [name for name in newest if _BROKEN.search(name)]
    return (
        *(Superfluous(name, f"{KEPT} others were used since") for name in good[KEPT:]),
        *(Superfluous(name, "moved away, and so was a newer one") for name in moved[KEPT_BROKEN:]),
    )


def _last(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].removeprefix("builtin:")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:_PART].strip("-.")
