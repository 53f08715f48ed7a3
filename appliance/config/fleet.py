"""The laws of engines: each with itself, and all with one another.

Two engines may serve one name only when they are replicas of one another in all but place: the same model with the same
vLLM flags (or one of them elsewhere, by `remote`). Shares of one GPU add up to 1 at most, with vLLM's own default of
0.92 where the file is silent; engines with gpus = "auto" find their place at start and are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance import names
from appliance.config.model import Config, Engine
from appliance.config.placement import gpus_needed, gpus_of, memory_share

if TYPE_CHECKING:
    from appliance.config.check import Say

# environment variable -> (why it is refused, what to do instead)
REFUSED_ENV = {
    "VLLM_SERVER_DEV_MODE": ("it opens control routes that ask for no key", "leave it out"),
    "VLLM_API_KEY": ("the gateway checks keys", "use llm-appliance keys"),
    "VLLM_CONFIGURE_LOGGING": ("the launcher follows the engine by its log", "leave it out"),
    "VLLM_LOGGING_CONFIG_PATH": ("the launcher follows the engine by its log", "leave it out"),
}
_LOG_LEVELS = ("DEBUG", "INFO")
LOCAL_ONLY = ("gpus", "shm_size", "memory_max", "priority", "startup_timeout", "standby", "min_model_len",
              "env", "vllm")  # fmt: skip


def served_names(engine: Engine) -> tuple[str, ...]:
    """All `model` strings of an engine: its own and its LoRA adapters'."""
    return (*engine.served, *lora_names(engine))


def lora_names(engine: Engine) -> tuple[str, ...]:
    """Names in `lora_modules`: a table, or a list of tables with `name`, of such as JSON, or of `NAME=PATH`. What is no
    adapter is left to vLLM to refuse."""
    modules = engine.vllm.get("lora_modules")
    if isinstance(modules, Mapping):
        modules = [modules] if isinstance(modules.get("name"), str) else [{"name": name} for name in modules]
    listed = [modules] if isinstance(modules, str) else modules if isinstance(modules, (list, tuple)) else []
    adapters = [_adapter(module) if isinstance(module, str) else module for module in listed]
    found = [adapter.get("name") for adapter in adapters if isinstance(adapter, Mapping)]
    return tuple(name for name in found if isinstance(name, str) and name)


def _adapter(text: str) -> object:
    """The table that vLLM makes of an adapter's text."""
    if not text.lstrip().startswith("{"):
        name, mark, _ = text.partition("=")
        return {"name": name} if mark else None
    try:
        return json.loads(text)
    except ValueError:
        return None


def laws(config: Config, say: Say) -> None:
    """Say everything that is wrong within and between engines."""
    if not config.engines:
        say(("engine",), "there is no engine, so nothing is served", "add [[engine]]", "warning")
    for index, engine in enumerate(config.engines):
        _model(engine, index, say)
        _env(engine, index, say)
        _remote(engine, index, say)
        _sizes(engine, index, say)
    _names(config, say)
    _served(config, say)
    _shares(config, say)


def _names(config: Config, say: Say) -> None:
    owners: dict[str, Engine] = {}
    for index, engine in enumerate(config.engines):
        for instance in engine.instances:
            if names.INSTANCE.fullmatch(instance) is None:
                say(("engine", index, "name"), f'"{instance}" is too long for the name of a unit', "shorten the name")
                break
            owner = owners.setdefault(instance, engine)
            if owner is engine:
                continue
            if owner.name == engine.name:
                say(("engine", index, "name"), f'two engines are called "{engine.name}"',
                    "give each its own name; one may go unnamed and is called default")  # fmt: skip
            else:
                say(("engine", index, "name"), f'"{instance}" is a replica of this engine and of "{owner.name}"',
                    "choose a name that does not end in a replica's number")  # fmt: skip
            break


def _served(config: Config, say: Say) -> None:
    owners: dict[str, Engine] = {}
    for index, engine in enumerate(config.engines):
        own: set[str] = set()
        strangers: list[tuple[str, Engine]] = []
        for name in served_names(engine):
            if name in own:
                say(("engine", index, _key(engine, name)), f'"{name}" is served twice by this engine',
                    "write each name once")  # fmt: skip
            own.add(name)
            owner = owners.setdefault(name, engine)
            if owner is not engine and not _replicas(owner, engine):
                strangers.append((name, owner))
        for name, owner in strangers[:1]:  # the rest would say the same
            say(("engine", index, _key(engine, name)), f'"{name}" is served by engine "{owner.name}" too, which is set '
                "up differently", "set served_names, or give both the same model and vLLM flags")  # fmt: skip


def _key(engine: Engine, name: str) -> str:
    return "served_names" if name in engine.served_names else "model"


def _replicas(one: Engine, other: Engine) -> bool:
    """Whether a call may go to either engine."""
    return one.model == other.model and (one.vllm == other.vllm or bool(one.remote) or bool(other.remote))


def _model(engine: Engine, index: int, say: Say) -> None:
    path = ("engine", index, "model")
    model = engine.model
    if not model or not names.default_served_name(model):
        say(path, f'"{model}" names no model', 'like "Qwen/Qwen2.5-14B-Instruct-AWQ"')
    elif engine.remote:
        return  # a name that the other side knows
    elif names.is_builtin(model):
        if model not in ("builtin:smollm2-135m", "builtin:minilm-l6-v2"):
            say(path, f'there is no "{model}"', 'one of "builtin:smollm2-135m", "builtin:minilm-l6-v2"')
    elif model.startswith("/"):
        if ".." in model.split("/"):
            say(path, f'"{model}" goes through ..', "write the directory itself")
    elif model.startswith((".", "~")) or model.count("/") > 1 or any(c in model for c in ' :\\"~@') or ".." in model:
        say(path, f'"{model}" is neither a hub id nor an absolute directory',
            'like "Qwen/Qwen2.5-14B-Instruct-AWQ" or "/srv/models/mine"')  # fmt: skip


def _env(engine: Engine, index: int, say: Say) -> None:
    for name, value in engine.env.items():
        path = ("engine", index, "env", name)
        if name in REFUSED_ENV:
            reason, remedy = REFUSED_ENV[name]
            say(path, f"is refused: {reason}", remedy)
        elif name == "VLLM_LOGGING_LEVEL" and value.upper() not in _LOG_LEVELS:
            say(path, "is refused: above INFO the launcher cannot follow the engine", 'leave it out, or "DEBUG"')
        elif name == "CUDA_VISIBLE_DEVICES":
            say(path, "goes past gpus, which memory shares and start order are judged by", "set gpus", "warning")
        elif name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            say(path, "engines run offline and need no token, and this file is readable by all",
                "set [models] token_file", "warning")  # fmt: skip


def _remote(engine: Engine, index: int, say: Say) -> None:
    if not engine.remote:
        if engine.remote_api_key_file:
            say(("engine", index, "remote_api_key_file"), "has no effect without remote", "remove it", "warning")
        return
    if engine.replicas != 1:
        say(("engine", index, "replicas"), "each URL in remote is a replica", "remove it and list the URLs")
    if not engine.served_names and engine.model == Engine().model:
        say(("engine", index, "remote"), f'is offered as "{engine.served[0]}", for nothing says what it serves',
            "write served_names as the engine there has them", "warning")  # fmt: skip
    if len(set(engine.remote)) != len(engine.remote):
        say(("engine", index, "remote"), "names an engine twice", "write each URL once")
    plain = Engine()
    for key in LOCAL_ONLY:
        if getattr(engine, key) != getattr(plain, key):
            say(("engine", index, key), "has no effect on an engine elsewhere (remote)", "remove it", "warning")


def _sizes(engine: Engine, index: int, say: Say) -> None:
    """GPU counts, memory shares and adapters of one engine."""
    flags = ("engine", index, "vllm")
    share = engine.vllm.get("gpu_memory_utilization")
    if isinstance(share, (int, float)) and not 0 < share <= 1:
        say((*flags, "gpu_memory_utilization"), f"{share:g} is not a share of the GPU", "more than 0, at most 1")
    elif isinstance(share, (int, float)) and share > 0.95:
        say((*flags, "gpu_memory_utilization"), f"{share:g} leaves too little for CUDA itself: out-of-memory errors "
            "are likely", "at most 0.95", "warning")  # fmt: skip
    if engine.vllm.get("lora_modules") and engine.vllm.get("enable_lora") is not True:
        say((*flags, "lora_modules"), "adapters load only with enable_lora", "add enable_lora = true", "warning")
    longest = engine.vllm.get("max_model_len")
    if isinstance(longest, int) and longest < engine.min_model_len:
        say(("engine", index, "min_model_len"), f"{engine.min_model_len} is more than max_model_len {longest}",
            "at most max_model_len")  # fmt: skip
    needed = gpus_needed(engine)
    if engine.gpus == "auto" or engine.remote:
        return
    if _unsplittable(engine):
        say(("engine", index, "gpus"), f"{len(engine.gpus)} GPUs cannot be split among {engine.replicas} replicas",
            f"list a multiple of {engine.replicas}")  # fmt: skip
        return
    given = len(gpus_of(engine, engine.instances[0]))
    if needed is not None and engine.gpus and needed > given:
        say(("engine", index, "gpus"), f"one replica needs {needed} GPUs by its vLLM flags and gets {given}",
            "list more GPUs or lower tensor_parallel_size")  # fmt: skip
    elif needed is not None and engine.gpus and needed < given:
        say(("engine", index, "gpus"), f"one replica uses {needed} GPUs by its vLLM flags and gets {given}",
            "raise tensor_parallel_size or replicas", "warning")  # fmt: skip


def _unsplittable(engine: Engine) -> bool:
    return len(engine.gpus) > engine.replicas and len(engine.gpus) % engine.replicas != 0 and engine.gpus != "auto"


def _shares(config: Config, say: Say) -> None:
    """The sum of memory shares on each listed GPU."""
    if config.runtime.device == "cpu":
        return
    used: dict[int | str, tuple[float, str]] = {}
    for index, engine in enumerate(config.engines):
        share = memory_share(engine)
        if engine.remote or share is None or _unsplittable(engine):
            continue
        for instance in engine.instances:
            gpus = gpus_of(engine, instance)
            if gpus == "auto":
                continue
            full = [gpu for gpu in gpus if used.get(gpu, (0.0, ""))[0] + share > 1.0001]
            for gpu in gpus:
                before, who = used.get(gpu, (0.0, ""))
                used[gpu] = (before + share, f"{who}, {instance}" if who else instance)
            if full:
                total, who = used[full[0]]
                say(("engine", index, "gpus"), f"GPU {full[0]} is shared by {who}, whose gpu_memory_utilization adds "
                    f"up to {total:.2f}", "lower gpu_memory_utilization (0.92 by default)")  # fmt: skip
                break
