"""The page of `llm-appliance status` and `top`: the object of GET /status in, lines of at most 80 columns out.

From top to bottom: is it well, what each engine does and what is done about the others, GPUs, keys, and at the end
what an operator should do. What nobody said is `-`, and a part of which nothing is known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from appliance import __version__, names
from appliance.quantity import format_duration

from . import gpulines, output

WIDE = 80
COLOURS = {"serving": "green", "held": "red", "failed": "red", "restarting": "yellow", "stopped": "yellow"}
SILENT_S = 45.0  # the supervisor writes every 10 s, and may be busy for one of its deadlines
NOTED_WAIT_S = 10.0  # a first token that is awaited for so long is told
MOST_KEYS = 5
_DAY_S = 86400.0


def lines(value: Mapping[str, Any], now: float, columns: int = WIDE) -> Iterator[str]:
    """The page."""
    yield output.cut(_head(value), columns)
    gateway = value.get("gateway")
    if isinstance(gateway, Mapping):
        yield output.cut(_gateway(gateway), columns)
        yield from _quarantine(gateway)
    runtime = value.get("runtime")
    if isinstance(runtime, Mapping) and runtime.get("phase") not in (None, "complete"):
        percent = runtime.get("percent")
        share = f" ({percent:.0f} %)" if isinstance(percent, (int, float)) else ""
        yield output.cut(
            f"runtime   {output.clean(runtime['phase'])}: {output.clean(runtime.get('message'))}{share}", columns
        )
    yield from _supervisor(value, now, columns)
    yield ""
    yield from _states(value, now, columns)
    yield from _loads(value, columns)
    yield from _reasons(value, columns)
    yield from _incidents(value, now, columns)
    yield from gpulines.lines(value, columns)
    yield from _plans(value, columns)
    yield from _keys(value, columns)
    yield from _advice(value)
    yield from _drift(value, columns)


def replicas(value: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Every replica with its engine."""
    for engine in value.get("engines") or ():
        for replica in engine.get("replicas") or ():
            yield engine, replica


# --- the head ---------------------------------------------------------------------------------------------------------


def _head(value: Mapping[str, Any]) -> str:
    versions = value.get("versions") or {}
    vllm = output.clean(f"{versions.get('vllm')} ({versions.get('device') or '?'})")
    vllm = f", vLLM {vllm}" if versions.get("vllm") else ""
    word = str(value.get("state"))
    colour = {"serving": "green", "failed": "red", "invalid": "red", "unreachable": "red"}.get(word, "yellow")
    return f"llm-appliance {versions.get('appliance')}{vllm}: {output.paint(word, colour)}"


def _gateway(gateway: Mapping[str, Any]) -> str:
    addresses = gateway.get("listen")
    listen = (
        ", ".join(map(str, addresses)) if isinstance(addresses, Sequence) and not isinstance(addresses, str) else ""
    )
    rate = gateway.get("tokens_per_second")
    return f"gateway   {listen or addresses}: {gateway.get('running')} running, {gateway.get('queued')} queued" + (
        f", {rate:.0f} tok/s" if isinstance(rate, (int, float)) and rate else ""
    )


def _quarantine(gateway: Mapping[str, Any]) -> Iterator[str]:
    """Requests that are refused, and how that is lifted."""
    refused = (gateway.get("quarantine") or {}).get("refused")
    if refused:
        requests = "1 request is" if refused == 1 else f"{refused} requests are"
        yield f"{requests} refused for up to an hour, in flight at two crashes of an engine:"
        yield "    journalctl LLM_EVENT=request-quarantined; systemctl restart llm-gateway lifts it"


def _supervisor(value: Mapping[str, Any], now: float, columns: int) -> Iterator[str]:
    """Only where nobody would restart an engine."""
    local = any(not replica.get("remote") for _, replica in replicas(value))
    if "supervisor" not in value or not local:
        return
    told, at = value["supervisor"], (value["supervisor"] or {}).get("at")
    text = ""
    if not told or not isinstance(at, (int, float)):
        text = "has told nothing: engines are not restarted; systemctl status llm-supervisor"
    elif now - at > SILENT_S:
        text = f"silent for {format_duration(now - at)}: engines are not restarted; systemctl status llm-supervisor"
    elif told.get("mode") == "observe":
        text = 'mode is "observe": it judges and touches nothing'
    if text:
        yield output.cut(f"supervisor  {output.paint(text, 'yellow')}", columns)


# --- engines ----------------------------------------------------------------------------------------------------------


def _states(value: Mapping[str, Any], now: float, columns: int) -> Iterator[str]:
    rows = []
    for engine, replica in replicas(value):
        state, since = str(replica.get("state") or "unknown"), _number(replica, "since")
        restarts = _number(replica, "restarts")
        rows.append(
            [
                replica.get("name"),
                output.paint(state, COLOURS.get(state, "blue")),
                "-" if since is None else format_duration(max(now - since, 0.0)),
                "-" if restarts is None else f"{restarts:.0f}",
                ", ".join(map(str, engine.get("served_names") or ())),
            ]
        )
    made = output.lines(rows, ("ENGINE", "STATE", "SINCE", "RESTARTS", "SERVES"), columns)
    yield from made if rows else ["no engine is configured"]


def _loads(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """What the engines do that have calls, or could have."""
    rows, late = [], []
    for engine, replica in replicas(value):
        running, limit = replica.get("in_flight"), replica.get("limit")
        if limit is None or not (running or replica.get("state") in ("serving", "draining")):
            continue
        first, load = replica.get("first_token") or {}, replica.get("load") or {}
        kv, rate = _number(load, "kv_usage"), _number(replica, "tokens_per_second")
        is_first = replica is engine["replicas"][0]
        rows.append(
            [
                replica.get("name"),
                f"{running}/{limit}",
                engine.get("queued") if is_first else " ",  # calls wait for the engine, not for one of its replicas
                "-" if rate is None else f"{rate:.0f}",
                _first_tokens(_number(first, "p50_s"), _number(first, "p95_s")),
                "-" if kv is None else f"{kv * 100:.0f} %",
            ]
        )
        waited = _number(first, "longest_wait_s")
        if waited is not None and waited > NOTED_WAIT_S:
            calls = f"{first['awaited']} call{'s' * (first['awaited'] != 1)}"
            late.append(f"{replica.get('name')}: {calls} without a first token, the longest for {waited:.0f} s")
    if rows:
        yield ""
        headers = ("ENGINE", "RUNNING", "QUEUED", "TOK/S", "FIRST TOKEN p50 / p95", "KV CACHE")
        yield from output.lines(rows, headers, columns)
        yield from (output.cut(output.paint(output.clean(text), "yellow"), columns) for text in late)


def _first_tokens(half: float | None, most: float | None) -> str:
    """Half of them and nearly all came within these times."""
    if half is None or most is None:
        return "-"
    return f"{_brief(half)} / {_brief(most)}"


def _brief(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _number(value: Mapping[str, Any], name: str) -> float | None:
    found = value.get(name)
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _reasons(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """Under the tables: what each engine that does not serve is about, and what comes next."""
    for _, replica in replicas(value):
        state = replica.get("state")
        cause, next_ = replica.get("cause"), replica.get("next")
        text = replica.get("reason") or replica.get("message") or ""
        if state == "serving":
            text, cause = "", ""
        if state == "starting" and isinstance(replica.get("load_s"), (int, float)):
            text = f"{text}; the last start took {format_duration(replica['load_s'])}".lstrip("; ")
        if changed := replica.get("changed"):
            yield ""
            yield from _wrapped(f"{replica.get('name')}: ", f"starts with a change: {output.clean(changed)}", columns)
        if not text and not next_:
            continue
        body = ": ".join(output.clean(part) for part in (cause if cause != state else "", text) if part)
        yield ""
        yield from _wrapped(f"{replica.get('name')}: ", body or output.clean(next_), columns)
        if body and next_:
            yield output.cut(f"    next: {output.clean(next_)}", columns if output.is_terminal() else None)


def _incidents(value: Mapping[str, Any], now: float, columns: int) -> Iterator[str]:
    """The last incidents of the last day."""
    told = [one for one in value.get("incidents") or () if isinstance(one, Mapping) and _age(one, now) < _DAY_S]
    if told:
        yield ""
    for one in told[:3]:
        times = f" ({one['count']} times)" if isinstance(one.get("count"), int) and one["count"] > 1 else ""
        text = f"{one.get('id')}{times}, {format_duration(_age(one, now))} ago"
        yield output.cut(f"incident {output.clean(text)}", columns)
    if told:
        yield f"    llm-appliance incidents {output.clean(told[0].get('id'))}"


def _age(one: Mapping[str, Any], now: float) -> float:
    at = one.get("at")
    return max(now - at, 0.0) if isinstance(at, (int, float)) else 0.0


def _plans(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """What each start should find of memory, and found; nothing where nobody planned, as on a CPU."""
    rows: list[list[object]] = []
    for _, replica in replicas(value):
        planned, measured = replica.get("planned"), replica.get("measured")
        if isinstance(planned, Mapping) and isinstance(measured, Mapping) and measured:
            rows += [
                [replica.get("name"), "planned", *_figures(planned)],
                [" ", "measured", *_figures(measured)],
            ]
    if rows:
        yield ""
        yield from output.lines(rows, ("ENGINE", "EACH GPU", "WEIGHTS", "KV CACHE", "TOKENS", "REQUESTS"), columns)


def _figures(figures: Mapping[str, Any]) -> list[str]:
    weights, cache = _number(figures, "weights_gib"), _number(figures, "kv_gib")
    tokens, at_once, context = (_number(figures, key) for key in ("kv_tokens", "at_once", "context"))
    return [
        *("-" if size is None else f"{size:.1f} GiB" for size in (weights, cache)),
        "-" if tokens is None else f"{tokens:,.0f}",
        "-" if at_once is None or context is None else f"{at_once:.1f} of {context:,.0f}",
    ]


# --- keys -------------------------------------------------------------------------------------------------------------


def _keys(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """The keys that use most."""
    use = (value.get("keys") or {}).get("use") or ()
    if not use:
        return
    rows = [
        [
            one.get("name") or one.get("id"),
            one.get("running"),
            _tokens(one, "tokens_today", "daily_tokens"),
            _tokens(one, "tokens_month", "monthly_tokens"),
        ]
        for one in use[:MOST_KEYS]
    ]
    yield ""
    yield from output.lines(rows, ("KEY", "RUNNING", "TOKENS TODAY", "THIS MONTH"), columns)
    if len(use) > MOST_KEYS:
        yield f"and {len(use) - MOST_KEYS} more keys"


def _tokens(one: Mapping[str, Any], used: str, limit: str) -> str:
    count, most = _number(one, used), _number(one, limit)
    text = "-" if count is None else f"{count:,.0f}"
    return text if most is None else f"{text} of {most:,.0f}"


# --- what to do -------------------------------------------------------------------------------------------------------


def _drift(value: Mapping[str, Any], columns: int) -> Iterator[str]:
    """Where what is on disk and what runs differ, each with its remedy."""
    found = [one for one in value.get("drift") or () if isinstance(one, Mapping)]
    if (value.get("config") or {}).get("valid") is False:  # `_advice` has said it
        found = [one for one in found if one.get("kind") not in ("invalid", "rolled-back")]
    for one in found:
        yield ""
        yield from _wrapped("", f"{output.clean(one.get('text'))}:", columns)
        yield f"    {output.clean(one.get('remedy'))}"
    running = {
        "gateway": (value.get("versions") or {}).get("appliance"),
        "supervisor": (value.get("supervisor") or {}).get("version"),
    }
    for process, version in running.items():
        if isinstance(version, str) and version != __version__:
            yield ""
            yield f"the {process} that runs is of {output.clean(version)}, {__version__} is installed:"
            yield f"    systemctl restart llm-{process}"


def _advice(value: Mapping[str, Any]) -> Iterator[str]:
    config, keys = value.get("config") or {}, value.get("keys") or {}
    if config.get("valid") is False:
        in_force = {"last-good": "the last good one is in force", "none": "nothing is in force"}
        yield ""
        then = in_force.get(str(config.get("origin")), "it is not in force")
        yield f"the configuration file cannot be used, {then}:"
        yield f"    {output.clean(names.check_command(str(config.get('file') or names.CONFIG_FILE)))}"
    ledger = (value.get("gateway") or {}).get("ledger") or {}
    if ledger.get("problem"):
        yield ""
        yield output.clean(ledger["problem"])
        yield f"    lines waiting: {ledger.get('waiting')}, lost: {ledger.get('dropped')}; requests are served"
    if keys.get("problem"):
        yield ""
        yield f"API keys: {output.clean(keys['problem'])}"
    if keys.get("hint"):
        yield ""
        yield "no API key exists yet; to create one:"
        yield f"    {output.clean(keys['hint'])}"


def _wrapped(head: str, text: str, columns: int) -> Iterator[str]:
    line = head
    for word in text.split():
        if output.visible(line) + len(word) > columns and line.strip():
            yield line.rstrip()
            line = "    "
        line += word + " "
    yield line.rstrip()
