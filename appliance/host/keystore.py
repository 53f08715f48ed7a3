"""API keys on disk: made here, stored as hashes, found by hash.

A key is `sk-` and 32 random bytes. Nobody can guess one from its hash, so a plain SHA-256 is right: a slow hash is for
passwords that people choose. The lookup is by hash in a dictionary: what a timing could tell is about the hash of what
the caller sent, not about any key. The file is TOML, one `[[key]]` each; fields that this version does not know stay
when it is written again.

    [[key]]
    id = "k-1f0a9c2e"            # public, in logs and ledger
    name = "alice"               # for people
    hash = "sha256:..."
    created = 2026-01-31T12:00:00Z
    expires = 2027-01-31T12:00:00Z    # optional
    revoked = 2026-06-01T00:00:00Z    # optional
    models = ["chat"]                 # optional: served names it may use; absent: all
    previous_hash = "sha256:..."      # optional: the key before a rotation, good until `previous_until`
    class = "batch"                   # optional: interactive, standard (the default) or batch
    rpm = 60                          # optional, and so are all limits: requests a minute
    tpm = 100000                      # tokens a minute, prompt and answer
    parallel = 4                      # requests at once
    daily_tokens = 2000000            # a calendar day, UTC
    monthly_tokens = 40000000
    max_tokens = 4096                 # of one request's answers; also what a request gets that names no limit
    max_prompt = 262144               # bytes of one request
    stream_time = 600                 # seconds of one answer, the wait in the queue left out
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import Any

from appliance import names
from appliance.config.model import PRIORITIES, UNLIMITED, KeyLimits
from appliance.errors import EXIT_UNREACHABLE, Failed, UsageError

from .access import account
from .files import replace as replace_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "sk-"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
LIMITS = ("rpm", "tpm", "parallel", "daily_tokens", "monthly_tokens", "max_tokens", "max_prompt", "stream_time")
_KNOWN = ("id", "name", "hash", "created", "expires", "revoked", "models", "previous_hash", "previous_until")
_HEADER = b"# API keys, hashed. Written by `llm-appliance keys`; the gateway reads changes within a second.\n"


class KeysInvalid(Failed):
    """The keys file cannot be used; the message names the place."""


class KeysHidden(KeysInvalid):
    """This user may not look."""

    exit_status = EXIT_UNREACHABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key as stored; times are seconds since the epoch. `models` empty: all of them."""

    id: str
    name: str
    hash: str
    created: float
    expires: float | None = None
    revoked: float | None = None
    models: tuple[str, ...] = ()
    previous_hash: str = ""
    previous_until: float | None = None
    limits: KeyLimits = UNLIMITED
    rest: Mapping[str, Any] = field(default_factory=dict)  # whatever a later version wrote

    def state(self, now: float) -> str:
        """`good`, `revoked` or `expired`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "good"


class Keys:
    """A snapshot of the file, for lookups."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self.keys = tuple(keys)
        self._by_hash = {key.previous_hash: key for key in keys if key.previous_hash}
        self._by_hash |= {key.hash: key for key in keys}

    def find(self, secret: str, now: float) -> Key | None:
        """The key of a secret, whatever its state; None when there is none or its rotation's overlap is over."""
        digest = hash_of(secret)
        key = self._by_hash.get(digest)
        if key is not None and digest != key.hash and (key.previous_until is None or now >= key.previous_until):
            return None
        return key


def hash_of(secret: str) -> str:
    """What is stored of a secret."""
    return "sha256:" + hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def new_secret() -> str:
    """A fresh key: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def read(path: str) -> Keys:
    """The keys in a file; a missing file holds none. Raises KeysInvalid."""
    try:
        raw = tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        return Keys()
    except PermissionError as error:
        raise _unreadable(path, error) from None
    except OSError as error:
        raise KeysInvalid(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except RecursionError:
        raise KeysInvalid(f"{path}: not valid TOML: it is nested too deeply") from None
    except ValueError as error:  # not UTF-8, no TOML, or a number of thousands of digits
        raise KeysInvalid(f"{path}: not valid TOML: {error}") from None
    entries = raw.get("key", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KeysInvalid(f"{path}: keys are written as [[key]] tables")
    keys = [_key(entry, f"{path}: key {number}") for number, entry in enumerate(entries, 1)]
    for attribute in ("id", "hash"):
        values = [getattr(key, attribute) for key in keys]
        if len(set(values)) < len(values):
            raise KeysInvalid(f"{path}: two keys have the same {attribute}")
    return Keys(keys)


def write(path: str, keys: Sequence[Key]) -> None:
    """Replace the file in one step; as root it belongs to the gateway's group, 0640. Raises OSError."""
    content = _HEADER + b"".join(_table(key) for key in keys)
    group = _gateway_group()
    if group is None:
        replace_file(path, content, 0o600)
        return
    # The group must be right before the name is: a gateway that reads in between would lose all keys.
    temporary = f"{path}.new"
    replace_file(temporary, content, 0o640)
    os.chown(temporary, 0, group)
    os.replace(temporary, path)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the file's directory against another writer; blocks for as long as that one works."""
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def create(
    path: str,
    name: str,
    now: float,
    *,
    models: Sequence[str] = (),
    expires: float | None = None,
    limits: KeyLimits = UNLIMITED,
) -> tuple[Key, str]:
    """Add a key; returns it and its secret, which is nowhere else. Raises UsageError, KeysInvalid, OSError."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a key", hint="letters, digits and . _ @ -, at most 64")
    if odd := next((model for model in models if not model.isprintable()), None):
        raise UsageError(f"{odd!r} is no name of a model: it holds what cannot be printed")
    with locked(path):
        keys = read(path).keys
        if any(key.name == name and key.state(now) == "good" for key in keys):
            raise UsageError(f"a key named {name} exists", hint=f"llm-appliance keys rotate {name}")
        secret = new_secret()
        key = Key(
            id=f"k-{secrets.token_hex(4)}",
            name=name,
            hash=hash_of(secret),
            created=float(int(now)),
            expires=expires,
            models=tuple(models),
            limits=limits,
        )
        write(path, [*keys, key])
    return key, secret


def revoke(path: str, word: str, now: float) -> Key:
    """Make a key useless. Raises UsageError when `word` is no name or id of a good key."""
    with locked(path):
        keys = read(path).keys
        chosen = _choose(keys, word, now)
        revoked = replace(chosen, revoked=float(int(now)))
        write(path, [revoked if key is chosen else key for key in keys])
    return revoked


def rotate(path: str, word: str, now: float, *, overlap: float = 0.0) -> tuple[Key, str]:
    """A new secret for a key; the old one stays good for `overlap` seconds."""
    with locked(path):
        keys = read(path).keys
        chosen = _choose(keys, word, now)
        secret = new_secret()
        rotated = replace(
            chosen,
            hash=hash_of(secret),
            previous_hash=chosen.hash if overlap > 0 else "",
            previous_until=float(int(now + overlap)) if overlap > 0 else None,
        )
        write(path, [rotated if key is chosen else key for key in keys])
    return rotated, secret


def _choose(keys: Sequence[Key], word: str, now: float) -> Key:
    found = [key for key in keys if word in (key.id, key.name)]
    good = [key for key in found if key.state(now) == "good"]
    if good:
        return good[-1]
    if found:
        raise UsageError(f"the key {word} is {found[-1].state(now)} already")
    raise UsageError(f"there is no key {word!r}", hint="llm-appliance keys list")


def _key(entry: Mapping[str, Any], place: str) -> Key:
    def text(name: str) -> str:
        value = entry.get(name, "")
        if not isinstance(value, str):
            raise KeysInvalid(f"{place}: {name} must be a string")
        return value

    def moment(name: str) -> float | None:
        value = entry.get(name)
        if value is None:
            return None
        if not isinstance(value, datetime):
            raise KeysInvalid(f"{place}: {name} must be a date and time, like 2026-01-31T12:00:00Z")
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()

    models = entry.get("models", [])
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise KeysInvalid(f"{place}: models must be a list of names")
    for name in ("hash", "previous_hash"):
        if (text(name) or name == "hash") and not _HASH.fullmatch(text(name)):
            raise KeysInvalid(f"{place}: {name} must be sha256: and 64 hexadecimal digits")
    if not text("id") or not text("name"):
        raise KeysInvalid(f"{place}: id and name must be there")
    return Key(
        id=text("id"),
        name=text("name"),
        hash=text("hash"),
        created=moment("created") or 0.0,
        expires=moment("expires"),
        revoked=moment("revoked"),
        models=tuple(models),
        previous_hash=text("previous_hash"),
        previous_until=moment("previous_until"),
        limits=_limits(entry, place),
        rest={name: value for name, value in entry.items() if name not in (*_KNOWN, *LIMITS, "class")},
    )


def _limits(entry: Mapping[str, Any], place: str) -> KeyLimits:
    given: dict[str, Any] = {name: entry[name] for name in LIMITS if name in entry}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise KeysInvalid(f"{place}: {name} must be a whole number, 1 or more; leave it out for no limit")
    priority = entry.get("class", "standard")
    if priority not in PRIORITIES:
        raise KeysInvalid(f"{place}: class must be one of {', '.join(PRIORITIES)}")
    return KeyLimits(priority=priority, **given)


def _table(key: Key) -> bytes:
    lines = ["\n[[key]]"]
    for name in _KNOWN:
        value = getattr(key, name)
        if value in (None, "", ()):
            continue
        lines.append(f"{name} = {_moment(value) if isinstance(value, float) else _toml(value)}")
    if key.limits.priority != "standard":
        lines.append(f"class = {_toml(key.limits.priority)}")
    for name in LIMITS:
        if getattr(key.limits, name) is not None:
            lines.append(f"{name} = {getattr(key.limits, name)}")
    lines += [f"{_toml(name)} = {_toml(value)}" for name, value in key.rest.items()]
    return ("\n".join(lines) + "\n").encode()


def _moment(epoch: float) -> str:
    try:
        moment = datetime.fromtimestamp(epoch, timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise UsageError("that is beyond the year 9999", hint="a key without an end has no time at all") from None
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _toml(value: object) -> str:
    """A value as TOML; strings need JSON's escapes and one more."""
    import json

    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, float):
        return str(value)  # `nan` and `inf`, too, are TOML's words
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(str(name))} = {_toml(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _gateway_group() -> int | None:
    if os.geteuid() != 0:
        return None
    try:
        return grp.getgrnam(names.GATEWAY_USER).gr_gid
    except KeyError:
        return None


def _unreadable(path: str, error: PermissionError) -> KeysInvalid:
    """The gateway must be able to read the file; for all others it is none of their business."""
    message, gateway = f"{path}: {(error.strerror or str(error)).lower()}", account(names.GATEWAY_USER)
    if gateway is None or os.geteuid() != gateway.uid:
        return KeysHidden(message, hint="run the command as root (sudo)")
    group = names.GATEWAY_USER
    return KeysInvalid(message, hint=f"chown root:{group} {path}; chmod 0640 {path}")
