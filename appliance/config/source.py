"""The only reader of the configuration: the file, its drop-ins, and the last configuration that was applied.

`X/config.toml` is read first, then `X/config.d/*.toml` by name; a later file wins key by key. A drop-in's `[[engine]]`
with a name that an earlier file has is merged into that engine, any other is one more engine; other arrays are replaced
whole. The place of every value is kept, so that a problem names the file and line that it came from.

Nothing here raises for what a file holds or for a file that cannot be read: that is a problem like any other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance import names
from appliance.config import places
from appliance.config import snapshot as toml
from appliance.config.model import Config
from appliance.config.parse import Place, nowhere, parse
from appliance.config.places import Path
from appliance.errors import ConfigInvalid, Problem
from appliance.host import files as disk

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 4 << 20  # bytes of one file; a longer one is no configuration

_REMEDIES = (  # what the parser says -> what would be right
    ("Invalid value", "text stands in quotes: key = \"text\""),
    ("Cannot overwrite a value", "the key is there twice; keep one"),
    ("Cannot declare", "the table is there twice; keep one, or write [[engine]] for one more engine"),
    ("Cannot mutate immutable namespace", "the table is there twice; keep one"),
    ("Expected newline or end of document", "one key a line"),
    ("Expected '=' after a key", "write key = value"),
    ("Illegal character", "close the quotes on the same line"),
    ("Unclosed", "close the bracket"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What the processes go by, and what is wrong with the file on disk.

    `origin` says where `config` came from; `files` are those that were read for it. `text_digest` names the settings:
    equal for equal settings, whatever their comments, order of files or form. `raw` is the merged mapping that `config`
    was read from, and `place(path)` the file and line of a key in it. `rolled_back`: the file is valid, and set aside.
    """

    config: Config | None
    problems: tuple[Problem, ...] = ()
    origin: Literal["file", "last-good", "none"] = "none"
    files: tuple[str, ...] = ()
    text_digest: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    place: Place = field(default=nowhere, compare=False, repr=False)
    rolled_back: bool = False

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the file on disk from being in force."""
        return tuple(p for p in self.problems if p.severity == "error")


def effective(path: str = names.CONFIG_FILE) -> Effective:
    """The file with its drop-ins, unless it is invalid or was rolled back: then last-good.toml beside it, else nothing.

    The problems are those of the file. One that was rolled back and has nothing good beside it stays in force.
    """
    found = load(path)
    if os.path.basename(path) == names.LAST_GOOD_NAME:
        return found
    rejected = rejection(path, found) if found.config is not None else None
    if found.config is not None and rejected is None:
        return found
    spare = last_good(path)
    if spare.config is None:
        return found
    return Effective(
        config=spare.config, problems=(*found.problems, *([rejected] if rejected else ())), origin="last-good",
        files=spare.files, text_digest=spare.text_digest, raw=spare.raw, place=spare.place,
        rolled_back=rejected is not None,
    )  # fmt: skip


def rejection(path: str, found: Effective) -> Problem | None:
    """That these very settings were applied and rolled back, because an engine did not start with them."""
    said = disk.read_json(os.path.join(os.path.dirname(path), names.REJECTED_NAME)) or {}
    if not found.text_digest or said.get("text_digest") != found.text_digest:
        return None
    remedy = "correct it, then llm-appliance apply; apply tries the same settings again, too"
    return Problem("", f"was rolled back: {said.get('reason') or 'an engine did not start with it'}", remedy, file=path)


def load(path: str = names.CONFIG_FILE) -> Effective:
    """The file with its drop-ins, without a fallback: `config` is None when anything in them is wrong."""
    directory = os.path.join(os.path.dirname(path), names.DROPIN_DIRECTORY)
    try:
        dropins = sorted(name for name in os.listdir(directory) if name.endswith(".toml") and name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        dropins = []
    except OSError as error:
        return Effective(config=None, problems=(_unreadable(directory, error),))
    return _load([path, *(os.path.join(directory, name) for name in dropins)])


def last_good(path: str = names.CONFIG_FILE) -> Effective:
    """The last configuration that was applied, beside `path`; drop-ins are in it already and not read again."""
    return _load([os.path.join(os.path.dirname(path), names.LAST_GOOD_NAME)])


def snapshot(path: str = names.CONFIG_FILE) -> bytes:
    """The merged settings of a valid file as TOML, for last-good.toml. Raises ConfigInvalid."""
    found = load(path)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    head = f"# Written by llm-appliance: the last configuration that was applied ({found.text_digest}).\n"
    head += "# It is used while the configuration is invalid. Edit that, not this.\n\n"
    return f"{head}{toml.document(found.raw)}".encode()


def path_setting(path: str, section: str, key: str, packaged: str) -> str:
    """A path that commands need also while the file has errors elsewhere, so that keys can always be managed.

    `packaged` is the default, which holds for the packaged file alone. Raises ConfigInvalid where nothing tells.
    """
    found = effective(path)
    if found.config is not None:
        return str(getattr(getattr(found.config, section), key))
    table = found.raw.get(section)
    if isinstance(table, dict) and isinstance(table.get(key), str):
        return str(table[key])
    if path == names.CONFIG_FILE:
        return packaged
    raise ConfigInvalid(found.problems)


def _load(files: list[str]) -> Effective:
    merged = _Merged()
    problems: list[Problem] = []
    texts: list[str] = []
    for file in files:
        text = _read(file)
        if isinstance(text, Problem):
            problems.append(text)
            continue
        texts.append(text)
        try:
            merged.add(file, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            problems.append(_syntax(file, text, str(error)))
        except RecursionError:
            problems.append(Problem("", "is nested too deeply", file=file))
        except ValueError as error:  # a number of thousands of digits
            problems.append(Problem("", f"is not TOML: {error}", "no setting needs that", file=file))
    read = tuple(files)
    if problems:
        digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return Effective(config=None, problems=tuple(problems), files=read, text_digest=digest)
    try:
        config, found = parse(merged.raw, merged.place)
        canonical = json.dumps(merged.raw, sort_keys=True, default=str, separators=(",", ":"))
    except Exception as error:  # a fault of the parser's is a problem of the file, too: what runs does not pay for it
        fault = f"cannot be judged: {type(error).__name__}: {error}"
        config, found = None, (Problem("", fault, "a fault of the program; take back the last edit", file=read[-1]),)
        canonical = "\0".join(texts)
    order = {file: number for number, file in enumerate(files)}
    found = tuple(sorted(found, key=lambda problem: (order.get(problem.file or "", -1), problem.line or 0)))
    return Effective(
        config=config, problems=found, origin="none" if config is None else "file", files=read,
        text_digest=hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        raw=merged.raw, place=merged.place,
    )  # fmt: skip


def _read(file: str) -> str | Problem:
    try:
        with open(file, "rb") as opened:
            content = opened.read(LARGEST + 1)
    except FileNotFoundError:
        return Problem("", "there is no such file", "an empty file is the default configuration", file=file)
    except OSError as error:
        return _unreadable(file, error)
    if len(content) > LARGEST:
        return Problem("", "is larger than 4 MiB, which no configuration is", file=file)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return Problem("", "is not UTF-8 text", "save it as UTF-8", file=file, line=line)


def _unreadable(file: str, error: OSError) -> Problem:
    return Problem("", f"cannot be read: {(error.strerror or str(error)).lower()}", "it must be readable by all",
                   file=file)  # fmt: skip


def _syntax(file: str, text: str, message: str) -> Problem:
    """A syntax error of TOML with its line."""
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    plain = message[: at.start()] if at else message
    line = int(at[1]) if at and at[1] else max(1, len(text.rstrip().splitlines()))
    column = f" at column {at[2]}" if at and at[2] else ""
    remedy = next((right for start, right in _REMEDIES if plain.startswith(start)), "see toml.io")
    return Problem("", f"is not TOML: {plain[:1].lower()}{plain[1:]}{column}", remedy, file=file, line=line)


class _Merged:
    """Files laid over one another, and where each value came from."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._lines: dict[str, dict[Path, int]] = {}
        self._origins: dict[Path, tuple[str, Path]] = {}  # path in `raw` -> file, path in that file

    def add(self, file: str, text: str, content: dict[str, Any]) -> None:
        """Lay one more file over what there is."""
        self._texts[file] = text
        engines = content.get("engine")
        if isinstance(engines, list) and isinstance(self.raw.get("engine"), list):
            rest = {key: value for key, value in content.items() if key != "engine"}
            self._lay(self.raw, rest, file, (), ())
            self._engines(engines, file)
        else:
            self._lay(self.raw, content, file, (), ())

    def _engines(self, engines: list[Any], file: str) -> None:
        known = self.raw["engine"]
        before = {table.get("name", "default"): i for i, table in reversed(list(enumerate(known)))
                  if isinstance(table, dict) and isinstance(table.get("name", ""), str)}  # fmt: skip
        for index, table in enumerate(engines):
            name = table.get("name") if isinstance(table, dict) else None
            if isinstance(name, str) and name in before:
                rest = {key: value for key, value in table.items() if key != "name"}
                self._lay(known[before[name]], rest, file, ("engine", before[name]), ("engine", index))
            else:
                self._origins["engine", len(known)] = file, ("engine", index)
                known.append(table)

    def _lay(self, under: dict[str, Any], over: Mapping[str, Any], file: str, at: Path, there: Path) -> None:
        for key, value in over.items():
            here, path = (*at, key), (*there, key)
            if isinstance(value, dict) and isinstance(under.get(key), dict):
                self._lay(under[key], value, file, here, path)
                continue
            for stale in [known for known in self._origins if known[: len(here)] == here]:
                del self._origins[stale]
            under[key] = value
            self._origins[here] = file, path

    def place(self, path: Path) -> tuple[str | None, int | None]:
        """File and line of the nearest thing that a file says about a path."""
        for length in range(len(path), 0, -1):
            origin = self._origins.get(path[:length])
            if origin is None:
                continue
            file, inner = origin
            if file not in self._lines:
                self._lines[file] = places.lines(self._texts[file])
            wanted = (*inner, *path[length:])
            for end in range(len(wanted), 0, -1):
                if wanted[:end] in self._lines[file]:
                    return file, self._lines[file][wanted[:end]]
            return file, None
        return None, None
