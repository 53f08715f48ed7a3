"""Containers that people run vLLM in: `docker run ...` and compose files.

A container is told as an image, the words that its program gets, its environment, GPUs and mounts; what these mean for
an engine is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.wire.shellscript import commands, expand

PROGRAMS = ("docker", "podman", "nerdctl")
_ALONE = frozenset(  # options of `run` without a value
    {"detach", "interactive", "tty", "rm", "init", "privileged", "publish-all", "read-only", "no-healthcheck",
     "oom-kill-disable", "quiet", "disable-content-trust", "sig-proxy", "help", "replace"}
)  # fmt: skip
_ALONE_SHORT = frozenset("ditPq")
_VALUED_SHORT = {"e": "env", "v": "volume", "p": "publish", "m": "memory", "u": "user", "w": "workdir", "h": "hostname",
                 "c": "cpu-shares", "l": "label", "a": "attach"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Container:
    """`words` are the program's, entry point included. `gpus`: indexes or UUIDs as written; empty where all are meant.

    `mounts` are (path on the host, path inside), `ports` ([address:]port on the host, port inside). `unread`: what only
    a run could tell.
    """

    image: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    gpus: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    memory: str = ""
    unread: tuple[str, ...] = ()
    ports: tuple[tuple[str, str], ...] = ()


def from_command(words: Sequence[str]) -> Container | None:
    """The container that a command runs; None where it runs none."""
    for index, word in enumerate(words):
        if word.rpartition("/")[2] in PROGRAMS:
            rest = list(words[index + 1 :])
            if rest[:1] == ["container"]:
                rest.pop(0)
            return _run(rest[1:]) if rest[:1] in (["run"], ["create"]) else None
    return None


def _run(words: list[str]) -> Container | None:
    options: list[tuple[str, str]] = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, given, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            short = word[1:]
            if set(short) <= _ALONE_SHORT:
                continue
            letter = next((at for at, each in enumerate(short) if each in _VALUED_SHORT), None)
            if letter is None:
                continue
            name, value = _VALUED_SHORT[short[letter]], short[letter + 1 :].lstrip("=")
            given = value
        if name in _ALONE:
            continue
        if not given:
            value = words.pop(0) if words else ""
        options.append((name, value))
    if not words:
        return None
    image = words.pop(0)
    of: dict[str, list[str]] = {}
    for name, value in options:
        of.setdefault(name, []).append(value)
    last = {name: values[-1] for name, values in of.items()}
    mounts = [*filter(None, map(_mount, of.get("volume", []))), *filter(None, map(_long_mount, of.get("mount", [])))]
    return Container(
        image,
        (*((last["entrypoint"],) if last.get("entrypoint") else ()), *words),
        dict(_pairs(of.get("env", []))),
        last.get("name", ""),
        _gpus(last.get("gpus", "")),
        tuple(mounts),
        last.get("memory", ""),
        ports=tuple(filter(None, map(_port, of.get("publish", [])))),
    )


def from_compose(document: object, env: Mapping[str, str] | None = None) -> tuple[Container, ...]:
    """The services of a compose file that was read as YAML; `env` are the variables it may name (its `.env`).

    Raises ValueError, with a sentence, where the document is none.
    """
    services = document.get("services") if isinstance(document, Mapping) else None
    if not isinstance(services, Mapping):
        raise ValueError("it has no services")
    return tuple(
        _service(str(name), service, env or {}) for name, service in services.items() if isinstance(service, Mapping)
    )


def _service(name: str, service: Mapping[str, Any], known: Mapping[str, str]) -> Container:
    unread: list[str] = []

    def text(value: object) -> str:
        # `$$` is a dollar sign in a compose file.
        parts = []
        for part in ("" if value is None else _plain(value)).split("$$"):
            told, unknown = expand(part, known)
            parts.append(told)
            unread.extend(unknown)
        return "$".join(parts)

    def words(value: object) -> list[str]:
        if isinstance(value, str):
            return [word for command in commands(text(value), known) for word in command.words]
        return [text(word) for word in value] if isinstance(value, list) else []

    environment = service.get("environment") or {}
    if isinstance(environment, Mapping):
        env = {str(key): text(value) for key, value in environment.items() if value is not None}
    else:
        env = dict(_pairs([text(pair) for pair in environment]))
    mounts: list[tuple[str, str]] = []
    for volume in service.get("volumes") or []:
        if isinstance(volume, Mapping):
            if volume.get("source") and volume.get("target"):
                mounts.append((text(volume["source"]), text(volume["target"])))
        elif mount := _mount(text(volume)):
            mounts.append(mount)
    limits = _at(service, "deploy", "resources", "limits")
    memory = service.get("mem_limit") or (limits.get("memory") if isinstance(limits, Mapping) else "")
    return Container(
        text(service.get("image", "")),
        (*words(service.get("entrypoint")), *words(service.get("command"))),
        env,
        name,
        _compose_gpus(service),
        tuple(mounts),
        text(memory or ""),
        tuple(dict.fromkeys(unread)),
        tuple(filter(None, (_port(text(_short(port))) for port in service.get("ports") or []))),
    )


def _compose_gpus(service: Mapping[str, Any]) -> tuple[str, ...]:
    devices = _at(service, "deploy", "resources", "reservations", "devices") or service.get("gpus")
    for device in devices if isinstance(devices, list) else []:
        ids = device.get("device_ids") if isinstance(device, Mapping) else None
        if isinstance(ids, list):
            return tuple(str(each) for each in ids)
        count = device.get("count") if isinstance(device, Mapping) else None
        if isinstance(count, int):
            return tuple(str(index) for index in range(count))
    return ()


def _at(value: object, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _plain(value: object) -> str:
    """A YAML scalar as the text that a container gets."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _gpus(text: str) -> tuple[str, ...]:
    """`--gpus all`, `--gpus 2`, `--gpus '"device=0,1"'`, `--gpus device=GPU-...`."""
    text = text.strip("\"'")
    if text.isdigit():
        return tuple(str(index) for index in range(int(text)))
    found = re.search(r'device=([^"\']+)', text)
    return tuple(filter(None, found[1].split(","))) if found else ()


def _pairs(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`NAME=VALUE`; a bare NAME takes its value from where the container is started, which nobody here knows."""
    for text in texts:
        name, given, value = text.partition("=")
        if given:
            yield name.strip(), value


def _mount(text: str) -> tuple[str, str] | None:
    host, _, inside = text.partition(":")
    return (host, inside.partition(":")[0]) if inside else None


def _port(text: str) -> tuple[str, str] | None:
    """`[ADDRESS:]PORT:INSIDE[/tcp]`; None where the host's port is any that is free."""
    outside, _, inside = text.partition("/")[0].rpartition(":")
    return (outside, inside) if outside else None


def _short(port: object) -> object:
    """A port of a compose file in the form of a line."""
    if not isinstance(port, Mapping):
        return port
    host = str(port.get("host_ip") or "")
    host = f"[{host}]" if ":" in host else host
    return ":".join(str(part) for part in (host, port.get("published") or "", port.get("target") or "") if part)


def _long_mount(text: str) -> tuple[str, str] | None:
    of = dict(_pairs(text.split(",")))
    host, inside = of.get("source") or of.get("src"), of.get("target") or of.get("dst") or of.get("destination")
    return (host, inside) if host and inside else None
