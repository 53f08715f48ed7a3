"""From a lock to files: which wheel of each package, where it can be had, how long it is.

uv asks the index (or only the wheelhouse) and answers with a pylock.toml (PEP 751), which holds address, length and
hash of each file. Only files whose hash is in our lock count. A wheelhouse that has them all needs no network.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from appliance.errors import Failed

from . import child, wheels
from .locks import Lock, normalized

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEADLINE_S = 300.0
REFUSAL = re.compile(r"401 Unauthorized|403 Forbidden")  # in uv's hint to that
NO_SOLUTION = "No solution found"  # uv's words for "the index answered, and has not got it"


class Unavailable(Failed):
    """The index or the wheelhouse answered, but lacks a file of this lock: another lock may be had."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of a plan. `path` is set when it lies on this machine already; `size` is None when nobody said."""

    filename: str
    url: str
    sha256: str
    size: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages come from: directories of wheels first, then the index (empty: the client's own default)."""

    wheelhouses: tuple[str, ...] = ()
    index_url: str = ""

    def find_links(self) -> list[str]:
        """The wheelhouses as options of pip and uv."""
        return [word for directory in self.wheelhouses for word in ("--find-links", directory)]

    def index(self) -> list[str]:
        """The index as an option of pip and uv."""
        return ["--index-url", self.index_url] if self.index_url else []


def resolve(
    uv: str, python: str, lock: Lock, sources: Sources, *, env: Mapping[str, str], scratch: str
) -> tuple[Wheel, ...]:
    """The files of a lock for `python`. Asks the wheelhouse alone first. Raises Unavailable, Failed; may block for
    minutes."""
    lacking = ""
    if sources.wheelhouses:
        try:
            return _ask(uv, python, lock, ["--no-index", *sources.find_links()], sources, env=env, scratch=scratch)
        except Unavailable as error:
            lacking = f"; and the wheelhouse alone is not enough: {error.message}"
    try:
        return _ask(uv, python, lock, [*sources.index(), *sources.find_links()], sources, env=env, scratch=scratch)
    except Unavailable:
        raise
    except Failed as error:
        raise Failed(f"{error.message}{lacking}", hint=error.hint) from error


def _ask(
    uv: str,
    python: str,
    lock: Lock,
    where: list[str],
    sources: Sources,
    *,
    env: Mapping[str, str],
    scratch: str,
) -> tuple[Wheel, ...]:
    requirements, answer = Path(scratch, lock.name), Path(scratch, "pylock.plan.toml")
    requirements.write_text(lock.text)
    answer.unlink(missing_ok=True)
    words = [uv, "pip", "compile", "--quiet", "--no-deps", "--only-binary", ":all:", "--python", python]
    words += ["--format", "pylock.toml", "--output-file", str(answer), *where, str(requirements)]
    ended = child.run(words, env=env, cwd=scratch, deadline_s=DEADLINE_S)
    if ended.status == 0:
        return plan(tomllib.loads(answer.read_text()), lock, sources.wheelhouses, base=scratch)
    if NO_SOLUTION in ended.text:
        if refusal := REFUSAL.search(ended.text):  # Unavailable: some mirrors say so of what they have not got
            raise Unavailable(
                f"the index answers {refusal[0]} for {lock.name}: is it the right address, with a user and password "
                "that may read it? (https://USER:PASSWORD@HOST/...)"
            )
        raise Unavailable(f"{lock.name} asks for what is not there: {_gist(ended.lines)}")
    raise Failed(
        f"the package index cannot be asked: {_gist(ended.lines)}",
        hint="check the network, [network] https_proxy and ca_file, and [runtime] index_url; "
        "without a network set [runtime] wheelhouse",
    )


def _gist(lines: Sequence[str]) -> str:
    """The last thing that uv names as a cause, with no credentials of an address in it."""
    told = [line.strip().removeprefix("cause:").removeprefix("Caused by:").strip() for line in lines if line.strip()]
    told = [line for line in told if not line.startswith(("hint:", "warning:", "WARNING"))]
    return redacted(told[-1].removeprefix("error: ")) if told else "no reason was given"


def redacted(text: str) -> str:
    """`text` with the user part of every URL in it taken out."""
    words = []
    for word in text.split(" "):
        scheme, separator, rest = word.partition("://")
        host, slash, path = rest.partition("/")
        words.append(f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else word)
    return " ".join(words)


def plan(pylock: Mapping[str, Any], lock: Lock, houses: Sequence[str], base: str = "/") -> tuple[Wheel, ...]:
    """The best file of each package whose hash is in the lock. Raises Unavailable naming the package that has none."""
    chosen = []
    for package in pylock.get("packages", []):
        allowed = lock.pins.get(normalized(package["name"]), frozenset())
        fitting = [wheel for wheel in map(_wheel, package.get("wheels", [])) if wheel.sha256 in allowed]
        if not fitting:
            raise Unavailable(
                f"{package['name']} {package.get('version', '')} can be had, but not the file that was tested"
            )
        chosen.append(_placed(max(fitting, key=lambda wheel: wheels.rank(wheel.filename)), houses, base))
    return tuple(chosen)


def _wheel(entry: Mapping[str, Any]) -> Wheel:
    address = str(entry.get("url") or entry.get("path") or "")
    filename = str(entry.get("name") or unquote(urlsplit(address).path).rpartition("/")[2])
    return Wheel(filename, address, str(entry.get("hashes", {}).get("sha256", "")), entry.get("size"))


def _placed(wheel: Wheel, houses: Sequence[str], base: str) -> Wheel:
    """The wheel with its place on this machine, where it has one and its bytes are the right ones."""
    local = local_path(wheel.url, base)
    for path in [*([local] if local else []), *(f"{house}/{wheel.filename}" for house in houses)]:
        if digest(path) == wheel.sha256:
            return Wheel(wheel.filename, wheel.url, wheel.sha256, os.path.getsize(path), path)
    return wheel


def local_path(address: str, base: str = "/") -> str | None:
    """The path that an address names when it needs no network."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return unquote(parts.path)
    return None if parts.scheme else os.path.join(base, address)


def digest(path: str) -> str | None:
    """SHA-256 of a file; None when it cannot be read."""
    hasher = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                hasher.update(block)
    except OSError:
        return None
    return hasher.hexdigest()
