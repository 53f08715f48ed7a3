"""A command that starts vLLM's server, as people write it: `vllm serve MODEL --flag value`, or `python -m ...`.

Its arguments become the mapping that `[engine.vllm]` holds, in vLLM's own names and types; whether vLLM still knows a
flag is `vllmflags.check`'s question. Short forms, `--x=value`, `--no-x` and `--config.key value` are understood.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.wire import vllmflags

MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")

SHORT: Mapping[str, str] = {  # of `vllm serve --help=all`, 0.32.0
    "ac": "attention_config", "asc": "api_server_count", "cc": "compilation_config", "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size", "dp": "data_parallel_size", "dpa": "data_parallel_address",
    "dpb": "data_parallel_backend", "dpe": "data_parallel_external_lb", "dph": "data_parallel_hybrid_lb",
    "dpl": "data_parallel_size_local", "dpm": "data_parallel_multi_port_external_lb", "dpn": "data_parallel_rank",
    "dpp": "data_parallel_rpc_port", "dpr": "data_parallel_start_rank", "ep": "enable_expert_parallel",
    "n": "nnodes", "pcp": "prefill_context_parallel_size", "pp": "pipeline_parallel_size", "q": "quantization",
    "r": "node_rank", "sc": "speculative_config", "tp": "tensor_parallel_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Serve:
    """What a command serves: the model ("" where it names none), flags in vLLM's names, environment set before it.

    `left` are words that belong to no flag.
    """

    model: str
    flags: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def find(words: Sequence[str]) -> Serve | None:
    """The server that a command starts, whatever stands before it (`exec`, `nohup`, `env A=b`, `numactl ...`)."""
    words = list(words)
    for index, word in enumerate(words):
        program = word.rpartition("/")[2]
        if program == "vllm" and words[index + 1 : index + 2] == ["serve"]:
            rest = words[index + 2 :]
        elif word == "-m" and words[index + 1 : index + 2] in ([module] for module in MODULES):
            rest = words[index + 2 :]
            rest = rest[1:] if rest[:1] == ["serve"] else rest
        else:
            continue
        before = dict(pair for word in words[:index] if (pair := _assigned(word)))
        served = arguments(rest)
        return Serve(served.model, served.flags, before, served.left)
    return None


def arguments(words: Sequence[str], known: vllmflags.Table | None = None) -> Serve:
    """What stands after `vllm serve`."""
    known = known or vllmflags.table()
    flags: dict[str, object] = {}
    left: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_option(word):
            left.append(word)
            continue
        name, given, text = word.lstrip("-").partition("=")
        name, _, inner = name.partition(".")
        if not word.startswith("--"):
            if (level := re.fullmatch(r"O(\d)", name)) and not given:  # -O3
                name, given, text = "O", "=", level[1]
            name = SHORT.get(name, "compilation_config" if name == "O" and inner else name)
            name = "optimization_level" if name == "O" else name
        flag = name.replace("-", "_")
        if flag.startswith("no_") and flag not in known.flags and flag[3:] in known.flags:
            flags[flag[3:]] = False
            continue
        row = known.flags.get(str(known.flags.get(flag, {}).get("is", flag)), {})
        kind = row.get("kind", "")
        if given:
            values = [text]
        elif kind in ("bool", "switch") and not inner:
            values = []
        else:
            values = []
            most = len(words) if kind in ("list", "ints") else 1
            while at < len(words) and len(values) < most and not _is_option(words[at]):
                values.append(words[at])
                at += 1
        if inner:
            flags[flag] = _nested(flags.get(flag), inner.split("."), _json_or_text(values[0]) if values else True)
        else:
            flags[flag] = typed(kind, values)
    model = flags.pop("model", None) or flags.pop("model_tag", None)
    if model is None and left:
        model = left.pop(0)
    return Serve(str(model or ""), flags, {}, tuple(left))


def typed(kind: str, values: Sequence[str]) -> object:
    """An option's words as the kind of its flag wants them; a word that does not fit stays text, for the check to
    name."""
    if kind in ("list", "ints"):
        return [_json_or_text(value) if kind == "ints" or value.startswith("{") else value for value in values]
    if not values:
        return True
    (text,) = values
    if kind in ("bool", "switch"):
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in ("int", "float", "human", "json"):
        return _json_or_text(text)
    if kind == "":
        # Not a flag of today's vLLM: what it may stand for is numbers and words.
        return _json_or_text(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else text
    return text


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and re.fullmatch(r"-[\d.]+", word) is None


def _assigned(word: str) -> tuple[str, str] | None:
    found = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", word, re.DOTALL)
    return (found[1], found[2]) if found else None


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nested(under: object, path: Sequence[str], value: object) -> dict[str, Any]:
    """A table with one more key, which may lie in inner tables."""
    table = dict(under) if isinstance(under, Mapping) else {}
    head, *rest = path
    table[head] = _nested(table.get(head), rest, value) if rest else value
    return table
