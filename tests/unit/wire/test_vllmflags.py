"""vLLM's flags: what may be passed on, what is translated, what is refused, and how it is written on a command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.wire import vllmflags
from appliance.wire.vllmlegacy import LEGACY, REFUSED

KINDS = {"bool", "switch", "int", "float", "human", "str", "choice", "list", "ints", "json"}


def test_the_table_is_whole() -> None:
    table = vllmflags.table()
    assert table.version == "0.32.0"
    assert len(table.flags) > 300
    for name, row in table.flags.items():
        assert row.get("is") in table.flags if "is" in row else row["kind"] in KINDS, name
        assert "-" not in name
        assert row.get("kind") != "choice" or row["choices"], name


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("max_num_seqs", "int"), ("enforce_eager", "bool"), ("gpu_memory_utilization", "float"), ("headless", "switch"),
        ("max_model_len", "human"), ("kv_cache_dtype", "choice"), ("tool_call_parser", "str"), ("quantization", "str"),
        ("compilation_config", "json"), ("hf_overrides", "json"), ("cudagraph_capture_sizes", "ints"),
        ("lora_modules", "list"), ("tensor_parallel_size", "int"), ("max_lora_rank", "choice"), ("uds", "str"),
    ],
)  # fmt: skip
def test_kinds_that_guides_use(flag: str, kind: str) -> None:
    assert vllmflags.table().flags[flag]["kind"] == kind


def test_no_legacy_flag_is_known_and_every_refused_one_is_a_flag_or_a_habit() -> None:
    known = vllmflags.table().flags
    assert not set(LEGACY) & set(known)
    assert set(REFUSED) - set(known) == {"model_tag"}


@pytest.mark.parametrize("flag", sorted(LEGACY))
def test_a_legacy_flag_is_never_passed_on_and_never_fails(flag: str) -> None:
    for value in (True, 4, "x"):
        clean, [finding] = vllmflags.check({flag: value})
        assert flag not in clean
        assert finding.severity == "warning"
        assert finding.remedy
        assert set(clean) <= set(vllmflags.table().flags)


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_a_refused_flag_says_why(flag: str) -> None:
    clean, [finding] = vllmflags.check({flag: "x"})
    assert clean == {}
    assert finding.severity == "error"
    assert "refused" in finding.message
    assert finding.remedy


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ({"task": "embed"}, {"runner": "pooling", "convert": "embed"}),
        ({"task": "embed", "convert": "classify"}, {"runner": "pooling", "convert": "classify"}),
        ({"task": "generate"}, {"runner": "generate"}),
        ({"guided_decoding_backend": "xgrammar", "structured_outputs_config": {"backend": "guidance", "x": 1}},
         {"structured_outputs_config": {"backend": "guidance", "x": 1}}),
        ({"speculative_model": "m", "num_speculative_tokens": 3},
         {"speculative_config": {"model": "m", "num_speculative_tokens": 3}}),
        ({"worker_use_ray": True}, {"distributed_executor_backend": "ray"}),
        ({"worker_use_ray": False}, {}),
        ({"cuda_graph_sizes": [1, 2]}, {"cudagraph_capture_sizes": [1, 2]}),
        ({"device_memory_utilization": 0.5}, {"gpu_memory_utilization": 0.5}),
        ({"max-num-seqs": 3}, {"max_num_seqs": 3}),
        ({"--max-num-seqs": 3}, {"max_num_seqs": 3}),
        ({"enable_log_requests": False}, {}),
    ],
)  # fmt: skip
def test_translations(given: dict[str, object], clean: dict[str, object]) -> None:
    passed, findings = vllmflags.check(given)
    assert passed == clean
    assert {finding.severity for finding in findings} == {"warning"}


@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [
        ("enforce_eager", [True, False], ["true", 1, None]),
        ("max_num_seqs", [1, -1], [1.5, "1", True]),
        ("gpu_memory_utilization", [0.5, 1], ["0.5", True]),
        ("max_model_len", [8192, -1, "8k", "25.6k", "auto", "1M"], ["8kb", 1.5, True, ""]),
        ("dtype", ["float16"], ["fp16", 16, ["float16"]]),
        ("max_lora_rank", [16], [17, "16"]),
        ("quantization", ["awq", "whatever"], [1, True]),
        ("cudagraph_capture_sizes", [[1, 2]], [[], 1, ["1"], [True]]),
        ("lora_modules", [["a=/b"], [{"name": "a", "path": "/b"}]], ["a=/b", [], [True]]),
        ("compilation_config", [{"mode": 3}, {}], ['{"mode": 3}', 3]),
        ("collect_detailed_traces", [["all"]], [["everything"], "all"]),
    ],
)
def test_values(flag: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert vllmflags.check({flag: value}) == ({flag: value}, ())
    for value in bad:
        clean, [finding] = vllmflags.check({flag: value})
        assert (clean, finding.flag, finding.severity) == ({}, flag, "error")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("max_num_sequences", "max_num_seqs"),
        ("max_model_length", "max_model_len"),
        ("tensor_paralel_size", "tensor_parallel_size"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest(wrong: str, near: str) -> None:
    _, [finding] = vllmflags.check({wrong: 1})
    assert "no such flag" in finding.message
    assert near in finding.remedy


def test_two_spellings_of_one_flag_are_refused() -> None:
    _, [finding] = vllmflags.check({"gpu_memory_utilization": 0.5, "device_memory_utilization": 0.6})
    assert finding.severity == "error"


def test_arguments() -> None:
    given: dict[str, Any] = {
        "enforce_eager": False, "async_scheduling": True, "aggregate_engine_logging": False, "max_num_seqs": 64,
        "seed": -1, "max_model_len": "8k", "gpu_memory_utilization": 0.5, "chat_template": "-x",
        "cudagraph_capture_sizes": [1, 2], "lora_modules": [{"name": "ä", "path": "/b"}, "c=/d"],
        "compilation_config": {"mode": 3, "pass_config": {"fuse": True}}, "hf_overrides": {},
    }  # fmt: skip
    clean, findings = vllmflags.check(given)
    assert findings == ()
    assert vllmflags.arguments(clean) == [
        "--no-enforce-eager", "--async-scheduling", "--max-num-seqs", "64", "--seed=-1", "--max-model-len", "8k",
        "--gpu-memory-utilization", "0.5", "--chat-template=-x", "--cudagraph-capture-sizes", "1", "2",
        "--lora-modules", '{"name":"ä","path":"/b"}', "c=/d",
        "--compilation-config", '{"mode":3,"pass_config":{"fuse":true}}', "--hf-overrides", "{}",
    ]  # fmt: skip


def test_the_table_is_made_from_what_vllm_prints(tmp_path: Any) -> None:
    import importlib.util
    from pathlib import Path

    path = Path(__file__).resolve().parents[3] / "packaging/make_vllmflags.py"
    spec = importlib.util.spec_from_file_location("make_vllmflags", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    printed = """usage: vllm serve

options:
  --headless            Run without a head. (default: False)
  --eager, --no-eager   Run eagerly. More. (default: False)
  --size SIZE, -s SIZE, --width SIZE
                        How large it is. (default: 3)
  --kind {a,b,None}
                        Which kind.
  -h, --help            show this help message and exit

Group:
            A description as deep as help. (default: 1.5)

  --names NAMES [NAMES ...]
                        Some names. (default: None)
  --table TABLE
                        A table.
                        Should either be a valid JSON string or JSON keys
                        passed individually. (default: None)
"""
    made = module.table(printed, "9.9")
    assert json.loads(json.dumps(made)) == {
        "version": "9.9",
        "flags": {
            "eager": {"kind": "bool", "help": "Run eagerly"},
            "headless": {"kind": "switch", "help": "Run without a head"},
            "kind": {"kind": "choice", "choices": ["a", "b"], "help": "Which kind"},
            "names": {"kind": "list", "help": "Some names"},
            "size": {"kind": "int", "help": "How large it is"},
            "table": {"kind": "json", "help": "A table"},
            "width": {"is": "size"},
        },
    }  # fmt: skip


STRANGE = [[], {}, ["a"], {"a": [1]}, 1.5, float("nan"), True, "x", -1, 10**400, [[1], [{}]], "\0"]


def test_no_value_of_a_flag_raises() -> None:
    for flag in ("", "zzz", *LEGACY, *REFUSED, *vllmflags.table().flags):
        for value in STRANGE:
            clean, findings = vllmflags.check({flag: value})
            assert clean or findings, (flag, value)
