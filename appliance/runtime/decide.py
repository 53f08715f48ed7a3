"""What a start of the builder has to do about the runtime. Pure: the disk was read before.

Laws: a complete runtime with the wanted version, device, Python and lock is never built again. What the operator chose
is kept as long as it works. A newer tested vLLM, brought by a package upgrade, does not replace the active one by
itself: only a version in the file, a changed device, Python or lock, or `runtime install` makes a build.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.host.runtimes import Installed


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration and the host ask for. `locks` are the digests of this release's locks for the version and
    the device; none for a version of another release, which can only be kept, not built."""

    version: str
    device: str
    python: str
    locks: tuple[str, ...]
    pinned: bool  # the file names the version
    requested: bool = False  # `runtime install` asked for this release's vLLM beside the active one


@dataclass(frozen=True, slots=True)
class Keep:
    """`name` is right; make it the active one if it is not."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Build:
    """Build `name`; make it the active one unless another has to stay."""

    name: str
    reason: str
    activate: bool = True


def decide(wanted: Wanted, found: Sequence[Installed], chosen: str | None) -> Keep | Build:
    """The one thing to do."""
    working = [one for one in found if one.complete and one.usable and one.python == wanted.python]
    exact = next((one for one in working if _matches(one, wanted)), None)
    choice = next((one for one in working if one.name == chosen and one.device == wanted.device), None)
    if choice is not None and wanted.pinned and choice.version != wanted.version:
        choice = None
    active = next((one for one in working if one.current and one.device == wanted.device), None)
    older = active if active is not None and not wanted.pinned and active.version != wanted.version else None
    stays = choice or older
    if wanted.requested and exact is None:
        return Build(_free(wanted, found), "asked for by runtime install", activate=stays is None)
    if choice is not None:
        return Keep(choice.name, "chosen by the operator")
    if older is not None:
        return Keep(older.name, f"active; vLLM {wanted.version} is there for runtime install")
    if exact is not None:
        return Keep(exact.name, "complete")
    return Build(_free(wanted, found), _why(wanted, found))


def _matches(one: Installed, wanted: Wanted) -> bool:
    same = one.version == wanted.version and one.device == wanted.device
    return same and (not wanted.locks or one.lock in wanted.locks)


def _free(wanted: Wanted, found: Sequence[Installed]) -> str:
    """A name that no complete runtime has, so that running engines keep theirs."""
    taken = {one.name for one in found if one.complete or one.current}
    base = f"{wanted.version}-{wanted.device}"
    number = 1
    while (name := base if number == 1 else f"{base}-{number}") in taken:
        number += 1
    return name


def _why(wanted: Wanted, found: Sequence[Installed]) -> str:
    same = [one for one in found if one.complete and one.version == wanted.version and one.device == wanted.device]
    if not same:
        return "not built yet"
    if all(one.python != wanted.python for one in same):
        return f"the host's Python is {wanted.python} now"
    if not any(one.usable for one in same):
        return "the Python it was built with is gone"
    return "this release has another lock"
