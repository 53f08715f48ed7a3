"""Models that an engine needs: its own, and those that vLLM's flags name beside it.

An engine runs offline, so each is fetched before it starts, and vLLM is given directories. A reference is
`ORG/NAME[@REVISION][~files]` (`names.model_directory` has its place), a directory, or `builtin:NAME`; `~files` is a
repository without its weights, for where vLLM wants a tokenizer or a config alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from appliance.config.model import Engine
from appliance.names import WITHOUT_WEIGHTS, is_builtin

_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_WITHOUT_WEIGHTS = {"tokenizer": "tokenizer_revision", "hf_config_path": ""}  # flag -> the flag of its revision
_PINS = frozenset({"revision", "tokenizer_revision", "code_revision"})  # what they pin lies in a directory


def own(engine: Engine) -> str:
    """The reference of the model that the engine serves."""
    revision = engine.vllm.get("revision")
    pinned = revision and not is_builtin(engine.model) and not engine.model.startswith("/")
    return f"{engine.model}@{revision}" if pinned else engine.model  # also gpt2: a name of a hub may have one part


def references(engine: Engine) -> tuple[str, ...]:
    """Everything that must be on this machine before the engine starts, its own model first."""
    found = [own(engine)]

    def place(reference: str) -> str:
        found.append(reference)
        return reference

    placed(engine.vllm, place)
    return tuple(dict.fromkeys(found))


def placed(flags: Mapping[str, object], place: Callable[[str], str]) -> dict[str, object]:
    """The flags with `place(reference)` for each model of a hub, and without revisions, which directories have not."""
    made = {flag: value for flag, value in flags.items() if flag not in _PINS}
    for flag, pin in _WITHOUT_WEIGHTS.items():
        if reference := _reference(flags.get(flag), flags.get(pin), WITHOUT_WEIGHTS):
            made[flag] = place(reference)
    speculative = flags.get("speculative_config")
    if isinstance(speculative, Mapping) and (
        reference := _reference(speculative.get("model"), speculative.get("revision"))
    ):
        made["speculative_config"] = {key: value for key, value in speculative.items() if key != "revision"} | {
            "model": place(reference)
        }
    adapters = flags.get("lora_modules")
    if isinstance(adapters, (list, tuple)):
        made["lora_modules"] = [_adapter(adapter, place) for adapter in adapters]
    return made


def _adapter(adapter: object, place: Callable[[str], str]) -> object:
    """`NAME=PATH`, or a table with `path`."""
    if isinstance(adapter, Mapping):
        reference = _reference(adapter.get("path"))
        return {**adapter, "path": place(reference)} if reference else adapter
    name, given, path = str(adapter).partition("=")
    reference = _reference(path)
    return f"{name}={place(reference)}" if given and reference else adapter


def _reference(model: object, revision: object = None, suffix: str = "") -> str:
    """Empty for what lies in no hub."""
    if not isinstance(model, str) or is_builtin(model) or not _HUB.fullmatch(model):
        return ""
    return model + (f"@{revision}" if revision else "") + suffix
