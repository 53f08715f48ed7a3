"""Where what is on disk and what runs part ways; shown in fleet.json and `status`, repaired by an operator alone.

invalid      the file cannot be used; what runs goes on with the settings that it has
rolled-back  the file's settings were applied, and set aside because an engine did not start with them
settings     settings were edited and not applied
engine       an engine runs with other settings than those in force
unit         one of our units is changed by a file that is not ours
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from appliance import names
from appliance.config import diff, source
from appliance.config.source import Effective
from appliance.policy.reconcile import Desired, Seen, UnitState
from appliance.quantity import UNKNOWN

# Where an operator's files for units lie; the package's are in /usr/lib, the generator's in /run/systemd/generator*.
UNIT_DIRECTORIES = (
    "/etc/systemd/system", "/etc/systemd/system.control", "/run/systemd/system", "/run/systemd/system.control",
)  # fmt: skip
APPLY, CHECK = "llm-appliance apply", "llm-appliance check"
_SUFFIXES = (".service", ".socket", ".target", ".path")


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference. `settings` are the keys that differ, where that is known."""

    kind: str
    text: str
    remedy: str
    engine: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def public(self) -> dict[str, object]:
        """As JSON."""
        return {**asdict(self), "settings": list(self.settings)}


def of_file(path: str, running: Effective, disk: Effective) -> Iterator[Drift]:
    """The file with its drop-ins against the settings that the supervisor goes by."""
    if disk.config is None:
        first = f": {disk.errors[0]}" if disk.errors else ""
        yield Drift("invalid", f"the configuration file cannot be used{first}", CHECK)
        return
    rejected = source.rejection(path, disk)
    if rejected is not None:
        yield Drift("rolled-back", f"the configuration file as it stands {_words(rejected.message)}", APPLY)
        return
    if disk.text_digest == running.text_digest:
        return
    old = running.config
    keys = tuple(dict.fromkeys(_key(change) for change in diff.changes(old, disk.config))) if old is not None else ()
    if keys or old is None:  # another way to write the same settings is no difference
        yield Drift("settings", _edited(keys), APPLY, settings=keys)


def _words(message: str) -> str:
    return message[:1].lower() + message[1:]


def _key(change: diff.Change) -> str:
    return f"{change.key} of {change.engine}" if change.engine is not None else change.key


def _edited(keys: Sequence[str]) -> str:
    if not keys:
        return "the configuration file was edited and not applied"
    shown = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return f"{len(keys)} {'setting is' if len(keys) == 1 else 'settings are'} edited and not applied: {shown}"


def of_engines(desired: Iterable[Desired], seen: Mapping[str, Seen]) -> Iterator[Drift]:
    """Running engines against the settings in force; one that does not say what it was started with is UNKNOWN."""
    for one in desired:
        found = seen.get(one.instance, Seen())
        if found.unit is UnitState.UP and found.digest is not UNKNOWN and found.digest != one.digest:
            yield Drift("engine", f"{one.instance} runs with other settings than those in force", APPLY, one.instance)


def of_units(directories: Iterable[str] = UNIT_DIRECTORIES) -> Iterator[Drift]:
    """Files of others that change our units: drop-ins, a unit in place of ours, a mask."""
    for directory in directories:
        for name in _listed(directory):
            if not name.startswith("llm-"):
                continue
            path, unit = os.path.join(directory, name), name.removesuffix(".d")
            if name.endswith(".d") and unit.endswith(_SUFFIXES):
                changed = [file for file in _listed(path) if file.endswith(".conf")]
                if changed:
                    yield _overridden(unit, f"{path}/{changed[0]}", len(changed))
            elif name.endswith(_SUFFIXES):
                masked = os.path.realpath(path) == "/dev/null"
                if masked:
                    yield Drift("unit", f"{name} is masked", f"systemctl unmask {name}")
                elif not os.path.islink(path):  # a link is how systemd enables a unit under another name
                    yield _overridden(name, path, 1)


def _overridden(unit: str, path: str, count: int) -> Drift:
    more = f" and {count - 1} more" if count > 1 else ""
    return Drift("unit", f"{unit} is changed by {path}{more}", f"systemctl revert {unit}")


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


class Watch:
    """Looks again and again; the configuration is parsed anew only when one of its files has changed."""

    def __init__(self, config_path: str) -> None:
        self._path = config_path
        self._stamps: tuple[tuple[int, int, int] | None, ...] | None = None
        self._disk = Effective(config=None)

    def look(self, running: Effective, desired: Iterable[Desired], seen: Mapping[str, Seen]) -> list[Drift]:
        """All that differs now. Raises nothing: what cannot be read is no difference, or a file that is invalid."""
        directory = os.path.join(os.path.dirname(self._path), names.DROPIN_DIRECTORY)
        files = [self._path, directory, *(os.path.join(directory, name) for name in _listed(directory))]
        stamps = tuple(map(_stamp, files))
        if stamps != self._stamps:
            self._stamps, self._disk = stamps, source.load(self._path)
        return [*of_file(self._path, running, self._disk), *of_engines(desired, seen), *of_units()]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
