"""A plan for people (80 columns) and for programs."""

from __future__ import annotations

import textwrap

from appliance.policy.cards import Card
from appliance.policy.fitting import Plan
from appliance.policy.sizing import Sizing
from appliance.policy.weights import Weights
from appliance.quantity import UNKNOWN, format_size

from . import output

COLUMNS = 80
_COLOUR = {"fits": "green", "does not fit": "red", "unknown": "yellow"}


def text(engine: str | None, model: str, cards: tuple[Card, ...], plan: Plan, weights: Weights | None) -> str:
    """The page of one engine."""
    title = f"{engine}: {model}" if engine else model
    lines = [output.paint(output.clean(title), "bold")]
    found = plan.sizing
    where = f"{len(cards)}x {cards[0].name}"
    if found is not None:
        where = f"{found.gpus}x {found.card.name}" + (f" of {len(cards)}" if found.gpus < len(cards) else "")
    lines.append(f"{output.paint(plan.verdict, _COLOUR[plan.verdict])} on {where}")
    if found is not None:
        lines += ["", *_memory(found, weights), *_cache(found)]
    for refusal in plan.refusals:
        lines += ["", *_wrapped(refusal.reason)]
        lines += [row for way in refusal.alternatives for row in _wrapped(way, "    instead: ")]
    if plan.verdict == "fits":
        if found is not None and found.gpus < len(cards):
            lines += [
                "",
                "  [[engine]]",
                *_setting("gpus", list(range(found.gpus)), _free(len(cards) - found.gpus)),
            ]
        lines += ["", "  [engine.vllm]"]
        lines += [row for line in plan.lines for row in _setting(line.key, line.value, line.reason)]
        if not plan.lines:
            lines.append("  # vLLM's own defaults do")
    if plan.notes:
        lines.append("")
    lines += [row for note in plan.notes for row in _wrapped(note, "  note: ")]
    return "\n".join(lines)


def _free(count: int) -> str:
    return "1 is free" if count == 1 else f"{count} are free"


def _memory(found: Sizing, weights: Weights | None) -> list[str]:
    """What each GPU holds."""
    source = f"from {weights.source}" if weights is not None else ""
    batch = f"{found.batch.tokens} tokens, {found.batch.requests} requests a step"
    rows = [
        ("vLLM's share", found.share, f"of {format_size(found.card.memory)} on each GPU"),
        ("weights", found.weights, source),
        ("peak of a step", found.overhead.activation, f"estimate: {batch}"),
        ("CUDA graphs", found.overhead.graphs, "estimate"),
        ("CUDA, NCCL", found.overhead.context, "estimate"),
        *([("correction", found.correction, "learned from its last start")] if found.correction else []),
        ("KV cache", found.kv, "what is left" if found.kv > 0 else "nothing is left"),
    ]
    cells = [(name, _gib(size), why) for name, size, why in rows]
    return [f"  {row}" for row in output.lines(cells, columns=COLUMNS - 2)]


def _cache(found: Sizing) -> list[str]:
    """What the cache holds."""
    cache, longest = found.cache, found.longest
    if cache is None:
        return ["", "  the model keeps nothing of a request: it needs no KV cache"]
    if longest is UNKNOWN or longest < 1 or found.kv <= 0:
        return []
    form = "the model's own precision" if found.kv_dtype == "auto" else found.kv_dtype
    lines = ["", f"  KV cache in {form}: {cache.per_token} bytes a token on each GPU"]
    if cache.fixed_states:
        lines.append(f"  and {format_size(cache.fixed_states * cache.block_bytes)} of states for each request")
    lines.append(f"  {found.tokens} tokens; the longest context is {longest} of {found.context}")
    rows = [(f"{length}", f"{count:.1f}") for length, count in found.at_once.items() if length <= longest]
    if rows:
        lines += ["", *(f"  {row}" for row in output.lines(rows, ("CONTEXT", "REQUESTS AT ONCE"), COLUMNS - 2))]
    return lines


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"


def _setting(key: str, value: object, reason: str) -> list[str]:
    """A line of TOML, its reason behind it or, where that is too long, above it."""
    line = f"  {key} = {_toml(value)}"
    if len(line) + 4 + len(reason) <= COLUMNS:
        return [f"{line}  # {reason}"]
    return [*_wrapped(reason, "  # "), line]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _wrapped(words: str, first: str = "  ") -> list[str]:
    indent = "  # " if first == "  # " else " " * len(first)
    return textwrap.wrap(output.clean(words), COLUMNS, initial_indent=first, subsequent_indent=indent)


def as_json(engine: str | None, model: str, plan: Plan, weights: Weights | None) -> dict[str, object]:
    """The plan for a program; sizes are bytes on each GPU, null is what could not be told."""
    found = plan.sizing
    return {
        "engine": engine,
        "model": model,
        "verdict": plan.verdict,
        "sizing": None if found is None else _sizing_json(found, weights),
        "settings": [{"key": line.key, "value": line.value, "reason": line.reason} for line in plan.lines],
        "refusals": [{"reason": one.reason, "alternatives": list(one.alternatives)} for one in plan.refusals],
        "notes": list(plan.notes),
    }


def _sizing_json(found: Sizing, weights: Weights | None) -> dict[str, object]:
    def told(value: object) -> object:
        return None if value is UNKNOWN else value

    return {
        "card": found.card.name,
        "gpus": found.gpus,
        "tensor_parallel_size": found.tp,
        "pipeline_parallel_size": found.pp,
        "memory": found.card.memory,
        "share": found.share,
        "weights": found.weights,
        "weights_source": weights.source if weights else None,
        "activation": found.overhead.activation,
        "graphs": found.overhead.graphs,
        "context": found.overhead.context,
        "correction": found.correction,
        "kv": found.kv,
        "kv_dtype": found.kv_dtype,
        "kv_bytes_per_token": found.cache.per_token if found.cache else None,
        "kv_tokens": told(found.tokens),
        "max_model_len": told(found.longest),
        "requests_at_once": {str(length): round(count, 2) for length, count in found.at_once.items()},
    }
