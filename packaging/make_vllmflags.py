#!/usr/bin/env python3
"""Make `appliance/wire/vllmflags.json` from what `vllm serve --help=all` prints.

    vllm serve --help=all | packaging/make_vllmflags.py 0.32.0 > appliance/wire/vllmflags.json

argparse does not print types. A flag's kind comes from its form (`--no-X`, `{a,b}`, `X [X ...]`), then from its
default, and where the default is None from `NUMBERS` below; what is left is text. A new version therefore needs one
look at the flags that became `str`: run with `--texts` to list them.
"""

from __future__ import annotations

import json
import re
import sys

# Numbers whose printed default is None, or an integer where fractions are meant.
NUMBERS = {
    "float": """cpu_offload_gb kv_offloading_size mm_ipc_gpu_memory_gb mm_processor_cache_gb sse_keep_alive_interval
        video_pruning_rate""",
    "int": """api_server_count block_size cp_kv_cache_interleave_size cpu_distributed_timeout_seconds data_parallel_rank
        data_parallel_rpc_port data_parallel_size_local data_parallel_start_rank distributed_timeout_seconds
        elastic_ep_max_dp_size grpc_port mamba_block_size max_cpu_loras max_cudagraph_capture_size max_log_len
        max_lora_cls_labels max_num_active_seqs max_num_seqs max_parallel_loading_workers num_gpu_blocks_override port
        prefix_match_unit spec_tokens max_num_queued_reqs""",
    "human": "max_model_len",  # also takes "auto"; the others say so in their help
}
INTEGER_LISTS = {"cudagraph_capture_sizes", "numa_bind_nodes"}
JSON_DEFAULTS = ("{", "[")


def blocks(text: str) -> list[tuple[str, str]]:
    """(the line of option strings, the help in one line) of each flag."""
    found: list[tuple[str, list[str]]] = []
    inside = False  # a group's own description is as deep as a flag's help
    for line in text.splitlines():
        option = re.fullmatch(r"  (-\S.*?)(?:\s{2,}(\S.*))?", line)
        if option:
            found.append((option[1], [option[2] or ""]))
            inside = True
        elif re.match(r"\S", line):
            inside = False
        elif inside and line.startswith(" " * 12):
            found[-1][1].append(line.strip())
    return [(head, re.sub(r"\s+", " ", " ".join(lines)).strip()) for head, lines in found]


def names(head: str) -> list[str]:
    """Long option strings of a flag, snake_case, `--no-X` left out."""
    longs = re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)", head)
    kept = [long for long in longs if not (long.startswith("no-") and long[3:] in longs)]
    return list(dict.fromkeys(name.replace("-", "_") for name in kept))


def choices(head: str) -> list[object]:
    """The values between braces, or of the printed list."""
    braces = re.search(r"\{([^}]*)\}", head)
    if braces:
        return [int(c) if c.isdigit() else c for c in braces[1].split(",") if c != "None"]
    quoted = re.search(r"\[('[^\]]*')\]", head)
    return re.findall(r"'([^']*)'", quoted[1]) if quoted else []


def kind(name: str, head: str, text: str) -> str:
    """One of bool switch int human float choice list ints json str."""
    default = re.search(r"\(default: (.*)\)$", text)
    value = default[1] if default else ""
    if f"--no-{name.replace('_', '-')}" in head:
        return "bool"
    if re.search(r"\[(?:[A-Z{])[^\]]* \.\.\.\]", head):
        return "ints" if name in INTEGER_LISTS else "list"
    if choices(head):  # "{a,b} or name registered in ..." is open: text
        return "str" if " or " in head else "choice"
    if not re.search(rf"\b{name.upper()}\b|\[?[A-Z][A-Z0-9_]+\]?", head):
        return "switch"
    if "Should either be a valid JSON string" in text or value.startswith(JSON_DEFAULTS):
        return "json"
    if "human-readable integers" in text or name in NUMBERS["human"].split():
        return "human"
    for number in ("float", "int"):
        if name in NUMBERS[number].split():
            return number
    if re.fullmatch(r"-?\d+", value):
        return "int"
    return "float" if re.fullmatch(r"-?\d+\.\d+", value) else "str"


def help_of(text: str) -> str:
    """The first sentence, 120 characters at most."""
    plain = re.sub(r"\s*\(default: .*\)$", "", text).replace("`", "")
    sentence = re.split(r"(?<=[a-z)])\. |: - | API docs: ", plain)[0].rstrip(".")
    return sentence if len(sentence) <= 120 else sentence[:117].rsplit(" ", 1)[0] + "..."


def table(text: str, version: str) -> dict[str, object]:
    """The whole table as JSON will hold it. An alias row is `{"is": "its flag"}`."""
    flags: dict[str, dict[str, object]] = {}
    for head, help_text in blocks(text):
        words = [word for word in names(head) if word != "help"]
        if not words:
            continue
        row: dict[str, object] = {"kind": kind(words[0], head, help_text)}
        if row["kind"] == "choice" or (row["kind"] == "list" and choices(head)):
            row["choices"] = choices(head)
        row["help"] = help_of(help_text)
        flags[words[0]] = row
        flags.update({alias: {"is": words[0]} for alias in words[1:]})
    return {"version": version, "flags": dict(sorted(flags.items()))}


def main(arguments: list[str]) -> int:
    """Read standard input, write the table, one flag a line."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    made = table(sys.stdin.read(), arguments[0])
    flags = made["flags"]
    assert isinstance(flags, dict)
    if "--texts" in arguments:
        print("\n".join(name for name, row in flags.items() if row.get("kind") == "str"))
        return 0
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in flags.items())
    print(f'{{"version": {json.dumps(made["version"])}, "flags": {{\n{rows}\n}}}}')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
