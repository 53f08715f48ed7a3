"""A configuration as systemd sees it: which engine instances are wanted, and drop-ins for what differs from the units.

Keys are paths below the generator's output directory, values the text, None for a symlink to `ENGINE_TEMPLATE`. The
same configuration gives the same bytes. What is as the packaged unit has it is left out, so an untouched file renders
little more than its engine's wants link.

An engine has two drop-ins. `50-appliance.conf` holds what a running engine would have to be restarted for, and is part
of its digest; `60-start.conf` holds when and how long it starts, which means nothing to an engine that runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from appliance import names
from appliance.config.model import Config, Engine, Gateway
from appliance.config.placement import gpus_of
from appliance.wire.vllmargs import SHUTDOWN_S, shutdown_s
from appliance.wire.vllmmodels import references

ENGINE_TEMPLATE = "/usr/lib/systemd/system/llm-engine@.service"
# systemd's limits are the net behind the launcher's, so they are longer: an engine that the launcher gives up has its
# stacks printed and a verdict, one that systemd stops looks as if somebody had asked for it. Without the margins the
# template's TimeoutStartSec= and TimeoutStopSec= are those of an untouched engine.
START_MARGIN_S = 60.0  # to end what did not come up: three seconds for the stacks, 20 s for what is in a driver call
STOP_MARGIN_S = 45.0  # the launcher's 15 s on top of vLLM's own grace, 20 s to kill, and some
CPU_SHM = "2G"
_NOT_STARTED_WITH = ("replicas", "priority", "startup_timeout", "min_model_len", "remote", "remote_api_key_file")


def units(config: Config, source: str = names.CONFIG_FILE) -> dict[str, str | None]:
    """Everything the generator writes; `source` is the file that systemd names as the units' origin."""
    files: dict[str, str | None] = {}
    for instance in config.local_instances:
        unit = names.engine_unit(instance)
        files[f"{names.TARGET}.wants/{unit}"] = None
        files[f"{unit}.d/50-appliance.conf"] = _engine(config, instance, source)
        start = _start(config, instance)
        if start:
            files[f"{unit}.d/60-start.conf"] = start
    plain = Gateway()
    if config.gateway.listen != plain.listen:
        files[f"{names.GATEWAY_SOCKET_UNIT}.d/50-appliance.conf"] = _socket(config.gateway.listen, source)
    if config.gateway.admin_listen != plain.admin_listen:
        files[f"{names.GATEWAY_ADMIN_SOCKET_UNIT}.d/50-appliance.conf"] = _socket(
            (config.gateway.admin_listen,), source
        )
    for unit, lines in ((names.GATEWAY_UNIT, _gateway(config)), (names.RUNTIME_UNIT, _runtime(config))):
        if lines:
            files[f"{unit}.d/50-appliance.conf"] = _text(source, "Service", lines)
    return files


def engine_digest(config: Config, instance: str) -> str:
    """16 hex digits that name all that this instance's start depends on, and nothing else.

    Other engines, replica counts, start order and the gateway's settings do not count. KeyError for an instance that
    the configuration does not have.
    """
    engine = config.engine_of(instance)
    if engine is None:
        raise KeyError(instance)
    fields = {key: value for key, value in asdict(engine).items() if key not in _NOT_STARTED_WITH}
    fields["gpus"] = gpus_of(engine, instance)
    depends = {
        "instance": instance,
        "engine": fields,
        "models": [config.models.directory, config.models.source],
        "unit": _engine(config, instance, ""),
    }
    canonical = json.dumps(depends, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text(source: str, section: str, lines: Iterable[str], unit: Iterable[str] = ()) -> str:
    head = "# Generated from the configuration by llm-appliance; changes here are lost.\n"
    in_unit = [*([f"SourcePath={_plain(source)}"] if source else []), *unit]
    sections = [("Unit", in_unit), (section, list(lines))]
    return head + "\n".join("\n".join([f"[{name}]", *body, ""]) for name, body in sections if body)


def _engine(config: Config, instance: str, source: str) -> str:
    """What a running engine would have to be restarted for."""
    engine = config.engine_of(instance)
    assert engine is not None
    lines = [
        "TemporaryFileSystem=",  # the template's two, the second with its size
        "TemporaryFileSystem=/run/llm-appliance:ro,mode=0755",
        f"TemporaryFileSystem=/dev/shm:size={_shm(config, engine)},mode=1777,nosuid,nodev,noexec",
    ]
    if engine.memory_max is not None:
        lines.append(f"MemoryMax={engine.memory_max}")
    if shutdown_s(engine) != SHUTDOWN_S:
        lines.append(f"TimeoutStopSec={shutdown_s(engine) + STOP_MARGIN_S:.0f}")
    needed = references(engine)
    models = [names.model_directory(one, config.models.directory, config.models.source) for one in needed]
    lines += [f"BindReadOnlyPaths={_quoted('-' + path)}" for path in _hidden([*models, *_paths(engine.vllm)])]
    # A model that is still to be fetched is no failure: the unit is skipped, and started when the model is there.
    unit = [
        f"ConditionPathExists={_plain(directory)}/{names.RUNTIME_COMPLETE}"
        for one, directory in zip(needed, models, strict=True)
        if not one.startswith("/")
    ]
    return _text(source, "Service", lines, unit)


def _shm(config: Config, engine: Engine) -> str:
    if engine.shm_size != "auto":
        return str(engine.shm_size)
    # One %, since systemd expands specifiers in the path alone, not in its options.
    return CPU_SHM if engine.gpus == () or config.runtime.device == "cpu" else "50%"


def _start(config: Config, instance: str) -> str:
    """Engines that share a GPU or the CPU start one after the other: together they would misjudge what is free."""
    engine = config.engine_of(instance)
    assert engine is not None
    order = config.local_instances
    earlier = [other for other in order[: order.index(instance)] if _share(config, instance, other)]
    lines = []
    if engine.startup_timeout != Engine().startup_timeout:
        lines.append(f"TimeoutStartSec={engine.startup_timeout + START_MARGIN_S:.0f}")
    after = [f"After={names.engine_unit(other)}" for other in earlier]
    return _text("", "Service", lines, after) if lines or after else ""


def _share(config: Config, one: str, other: str) -> bool:
    """Whether two instances may use the same GPU, or both the CPU."""
    sets = []
    for instance in (one, other):
        engine = config.engine_of(instance)
        assert engine is not None
        sets.append(() if config.runtime.device == "cpu" else gpus_of(engine, instance))
    first, second = sets
    if first == "auto" or second == "auto":
        return True
    if not first or not second:
        return not first and not second
    if {type(gpu) for gpu in first} != {type(gpu) for gpu in second}:
        return True  # an index here, a UUID there: nobody can tell
    return bool(set(first) & set(second))


def _socket(addresses: Iterable[str], source: str) -> str:
    listed = list(addresses)
    lines = ["ListenStream=", *(f"ListenStream={address}" for address in listed)]
    if len({address.startswith("[") for address in listed}) > 1:
        lines.append("BindIPv6Only=ipv6-only")  # else [::] would take the IPv4 port too
    return _text(source, "Socket", lines)


def _gateway(config: Config) -> list[str]:
    """What the gateway must reach beyond the packaged unit: remote engines, and files of the operator's."""
    lines: list[str] = []
    hosts = dict.fromkeys(_host(url) for engine in config.engines for url in engine.remote)
    away = [host for host in hosts if not (host.startswith("127.") or host in ("::1", "localhost"))]
    if any(not _is_ip(host) for host in away):
        lines.append("IPAddressDeny=")  # a name may be any address, and has to be looked up
    else:
        lines += [f"IPAddressAllow={host}" for host in away]
    files = [config.gateway.tls_certificate, config.gateway.tls_key, config.auth.keys_file]
    files += [engine.remote_api_key_file for engine in config.engines]
    # The directories: a file that is replaced would stay the old one behind a mount of its own.
    read = _hidden(path.rpartition("/")[0] for path in files if path)
    written = [] if config.audit.directory == names.AUDIT else [config.audit.directory]
    return lines + _mounts(read, written)


def _runtime(config: Config) -> list[str]:
    """What llm-runtime needs beyond the packaged unit: a model directory of the operator's, files below /home."""
    models = [engine.model for engine in config.engines if engine.model.startswith("/") and not engine.remote]
    directories = [*config.runtime.wheelhouses, *models]
    files = [config.models.token_file, config.network.ca_file]
    read = _hidden([*directories, *(path.rpartition("/")[0] for path in files if path)])
    directory = config.models.directory
    if directory == names.MODELS:
        return _mounts(read, [])
    make = f"install -d -m 0755 -o {names.RUNTIME_USER} -g {names.RUNTIME_USER}"
    return [
        f'ExecStartPre=+/bin/sh -c \'test -d "$$0" || {make} "$$0"\' ' + _quoted(directory).replace("$", "$$"),
        *_mounts(read, [directory]),
    ]


def _mounts(read: list[str], written: list[str]) -> list[str]:
    lines = [f"BindReadOnlyPaths={_quoted('-' + path)}" for path in read]
    for path in written:
        lines.append(f"{'BindPaths' if _hidden([path]) else 'ReadWritePaths'}={_quoted('-' + path)}")
    home = any(_below(path, names.HOMES) for path in [*read, *written])
    return ["ProtectHome=tmpfs", *lines] if home else lines


def _hidden(paths: Iterable[str]) -> list[str]:
    """Those of the paths that the sandbox hides, each once."""
    return [path for path in dict.fromkeys(paths) if _below(path, names.HIDDEN)]


def _below(path: str, trees: Iterable[str]) -> bool:
    return any(path == tree or path.startswith(f"{tree}/") for tree in trees)


def _paths(value: object) -> Iterator[str]:
    """Absolute paths anywhere in vLLM's flags, `name=/path` too. A text of several lines is none: it would go on as
    lines of the unit."""
    if isinstance(value, str):
        path = re.fullmatch(r"(?:[^/=\s]+=)?(/[^\x00-\x1f\x7f]*)", value)
        if path:
            yield path[1]
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _paths(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _paths(inner)


def _host(url: str) -> str:
    found = re.match(r"https?://(?:[^/@]*@)?(?:\[([^\]]+)\]|([^:/]+))", url)
    return "" if found is None else (found[1] or found[2]).lower()


def _is_ip(host: str) -> bool:
    return ":" in host or re.fullmatch(r"\d+(\.\d+){3}", host) is not None


def _plain(text: str) -> str:
    """A value that systemd takes to the end of the line."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """One word of a list: quotes keep blanks and colons together."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_/.,@%+-]", text) else escaped
