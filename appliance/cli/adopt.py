"""`[[engine]]` for a vLLM that somebody runs by other means: what `config import` writes.

Values in, text out. What vLLM renamed is written by its new name; what the appliance keeps for itself, sets itself or
must not write into a file (keys, tokens) is left out and named, with what takes its place.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.config import snapshot
from appliance.config.model import Config
from appliance.wire import containers, servecommand, shellscript, vllmargs, vllmflags
from appliance.wire.redact import is_secret_name

_OURS = frozenset(  # the appliance sets these, or they mean nothing outside a container
    {"PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "NVIDIA_DRIVER_CAPABILITIES",
     "TRANSFORMERS_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE",
     "TRANSFORMERS_OFFLINE", "HF_HUB_ENABLE_HF_TRANSFER", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT",
     "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_HOST_IP",
     "CUDA_DEVICE_ORDER", "TZ", "LANG", "LC_ALL", "MODEL", "MODEL_NAME", "MODEL_ID"}
)  # fmt: skip
_TOKENS = frozenset(["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_API_TOKEN", "MODELSCOPE_API_TOKEN"])
_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Adopted:
    """One engine: its settings as `[[engine]]` holds them, settings of other tables that it relied on, remarks."""

    origin: str
    engine: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def from_script(text: str, origin: str = "line {line}") -> tuple[Adopted, ...]:
    """Every vLLM that a shell script or a command line starts, in a container or not."""
    found: list[Adopted] = []
    for command in shellscript.commands(text):
        where = origin.format(line=command.line)
        container = containers.from_command(command.words)
        if container is not None:
            found += _of_container(container, where, command.unread)
        elif served := servecommand.find(command.words):
            found.append(_adopt(served, {**command.env, **served.env}, where, unread=command.unread))
        elif inner := _inner_script(command.words):
            found += from_script(inner, where)
    return _named_apart(found)


def from_compose(document: object, env: Mapping[str, str]) -> tuple[Adopted, ...]:
    """Every service of a compose file that serves with vLLM. ValueError where the document is no compose file."""
    found: list[Adopted] = []
    for container in containers.from_compose(document, env):
        found += _of_container(container, f"service {container.name}", container.unread)
    return _named_apart(found)


def text_of(adopted: Sequence[Adopted]) -> str:
    """The TOML of all, with the remarks as comments above the engine that they are about."""
    tables: dict[str, dict[str, Any]] = {}
    for each in adopted:
        for table, keys in each.tables.items():
            tables.setdefault(table, {}).update(keys)
    parts = [snapshot.document(tables)] if tables else []
    for each in adopted:
        remarks = [line for remark in each.remarks for line in textwrap.wrap(remark, 115, subsequent_indent="  ")]
        parts.append(
            "".join(f"# {line}\n" for line in (f"from {each.origin}", *remarks))
            + snapshot.document({"engine": [dict(each.engine)]})
        )
    return "\n".join(parts)


def _of_container(container: containers.Container, origin: str, unread: Iterable[str]) -> list[Adopted]:
    """The engine in a container; none where it runs something else."""
    if inner := _inner_script(container.words):
        return [
            _adopt(served, {**container.env, **command.env, **served.env}, origin, container, command.unread)
            for command in shellscript.commands(inner, container.env)
            if (served := servecommand.find(command.words))
        ]
    served = servecommand.find(container.words)
    if served is None and "vllm" in container.image:
        served = servecommand.arguments(container.words)  # the image's own entry point is the server
    if served is None:
        return []
    return [_adopt(served, {**container.env, **served.env}, origin, container, unread)]


def _inner_script(words: Sequence[str]) -> str | None:
    """The script of `sh -c SCRIPT`."""
    for index, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in ("sh", "bash", "zsh") and re.fullmatch(r"-\w*c", words[index + 1]):
            return words[index + 2]
    return None


def _adopt(
    served: servecommand.Serve,
    env: Mapping[str, str],
    origin: str,
    container: containers.Container | None = None,
    unread: Iterable[str] = (),
) -> Adopted:
    remarks = [
        f"{word} is known only when the command runs: look at what it stands for here"
        for word in unread
        if not is_secret_name(word.strip("${}"))  # what it stands for would not be written anyway
    ]
    tables: dict[str, dict[str, Any]] = {}
    flags = dict(served.flags)
    model = _on_host(served.model, container, remarks)
    engine: dict[str, Any] = {"name": _slug((container.name if container else "") or model), "model": model}
    if not model:
        remarks.append("the command names no model: write one")
        engine.pop("model")
    served_names = flags.pop("served_model_name", None)
    if served_names:
        engine["served_names"] = served_names if isinstance(served_names, list) else [served_names]
    gpus = _gpus(env, container)
    if gpus:
        engine["gpus"] = gpus
        if flags.get("tensor_parallel_size") == len(gpus):
            del flags["tensor_parallel_size"]  # it follows the number of GPUs
    if container and container.memory and (size := _size(container.memory)):
        engine["memory_max"] = size
    kept = _environment(env, tables, remarks)
    if kept:
        engine["env"] = kept
    clean, findings = vllmflags.check(flags)
    for finding in findings:
        if finding.flag in ("host", "port"):
            continue  # told together below
        # A warning's remedy is done already.
        remarks.append(f"{finding.flag}: {finding.message}" + (f"; {finding.remedy}" * (finding.severity == "error")))
    if "uds" not in flags:
        remarks.append(_listening(flags.get("host"), flags.get("port"), container))
    if served.left:
        remarks.append(f"not understood and left out: {shlex.join(served.left)}")
    if clean:
        engine["vllm"] = clean
    return Adopted(origin, engine, tables, tuple(dict.fromkeys(remarks)))


def _listening(host: object, port: object, container: containers.Container | None) -> str:
    """Where clients came, and where they come now."""
    port = port or 8000
    for outside, inside in container.ports if container else ():
        if inside == str(port):
            host, _, port = outside.rpartition(":")
            break
    wide = host in (None, "", "0.0.0.0", "::", "[::]")
    told = " and lets others in" if wide else ""
    return (
        f"clients came to port {port}; now they connect to the gateway, at [gateway] listen "
        f'("{Config().gateway.listen[0]}" unless set): listen = ["{"0.0.0.0" if wide else host}:{port}"] '
        f"keeps the old port{told}"
    )


def _gpus(env: Mapping[str, str], container: containers.Container | None) -> list[int] | list[str]:
    """The GPUs that were chosen; empty where all or none were."""
    chosen = list(container.gpus) if container else []
    for name in _GPUS:
        if not chosen and env.get(name) and env[name] not in ("all", "void", "none"):
            chosen = [part.strip() for part in env[name].split(",")]
    if chosen and all(part.isdigit() for part in chosen):
        return [int(part) for part in chosen]
    return chosen if chosen and all(part.startswith("GPU-") for part in chosen) else []


def _environment(env: Mapping[str, str], tables: dict[str, dict[str, Any]], remarks: list[str]) -> dict[str, str]:
    """What an engine keeps of its environment; what has a setting of its own goes into `tables`."""
    kept: dict[str, str] = {}
    for name, value in env.items():
        if name in _GPUS or name in _OURS:
            continue
        if name in _TOKENS:
            remarks.append(
                f"{name} is not copied: put the token into a file of its own and name it in [models] token_file"
            )
        elif name == "VLLM_API_KEY":
            remarks.append("VLLM_API_KEY is not copied: llm-appliance keys create makes a key for each client")
        elif name == "HF_ENDPOINT":
            tables.setdefault("models", {})["endpoint"] = value
        elif name == "VLLM_USE_MODELSCOPE":
            if value.lower() in ("1", "true"):
                tables.setdefault("models", {})["source"] = "modelscope"
        elif name.lower() in ("https_proxy", "all_proxy"):
            tables.setdefault("network", {})["https_proxy"] = value
        elif name.lower() == "no_proxy":
            tables.setdefault("network", {})["no_proxy"] = value
        elif name.lower() == "http_proxy":
            pass  # downloads are by HTTPS
        elif name in vllmargs.KEPT or is_secret_name(name):
            remarks.append(f"{name} is left out: the appliance sets it itself, or it is a secret")
        else:
            kept[name] = value
    return kept


def _on_host(model: str, container: containers.Container | None, remarks: list[str]) -> str:
    """A model's directory as the host knows it."""
    if not model.startswith("/"):
        return model
    for host, inside in sorted(container.mounts if container else (), key=lambda mount: -len(mount[1])):
        inside = inside.rstrip("/")
        if model == inside or model.startswith(f"{inside}/"):
            outside = host.rstrip("/") + model[len(inside) :]
            if not host.startswith("/"):
                remarks.append(f"{host} is a volume or a path beside the file: write the model's whole path")
            return outside
    if container:
        remarks.append(f"{model} is a path inside the container: write where it lies on this machine")
    return model


def _slug(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.rstrip("/").rpartition("/")[2].lower()).strip("-")
    return slug[:32].strip("-") or "default"


def _size(text: str) -> str | None:
    """Docker's `16g` as `16GiB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])i?b?", text.strip(), re.IGNORECASE)
    return f"{found[1]}{found[2].upper()}iB" if found else None


def _named_apart(adopted: list[Adopted]) -> tuple[Adopted, ...]:
    """The same, each name once."""
    taken: set[str] = set()
    result = []
    for each in adopted:
        name = base = str(each.engine["name"])
        number = 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name)
        result.append(Adopted(each.origin, {**each.engine, "name": name}, each.tables, each.remarks))
    return tuple(result)
