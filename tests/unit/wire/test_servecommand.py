"""Commands that start vLLM: what `vllmflags.arguments` writes is read back, and what people write is understood."""

from __future__ import annotations

import pytest

from appliance.wire import vllmflags
from appliance.wire.servecommand import Serve, arguments, find

SAMPLES = {
    "bool": False, "switch": True, "int": 3, "float": 0.5, "human": "8k", "str": "words of text", "choice": None,
    "list": ["a", "b"], "ints": [1, 2, 4], "json": {"a": 1, "b": {"c": ["d"]}},
}  # fmt: skip


def _sample(row: dict[str, object]) -> object:
    kind = str(row["kind"])
    if kind == "choice" or (kind == "list" and row.get("choices")):
        choice = next(iter(row["choices"]))  # type: ignore[call-overload]
        return [choice] if kind == "list" else choice
    return SAMPLES[kind]


def test_every_flag_of_vllm_is_read_as_it_is_written() -> None:
    known = vllmflags.table()
    mapping = {flag: _sample(dict(row)) for flag, row in known.flags.items() if "kind" in row and flag != "model_tag"}
    model = mapping.pop("model", None)
    assert len(mapping) > 300
    read = arguments(["some/model", *vllmflags.arguments(mapping)])
    assert dict(read.flags) == {
        key: str(value) if key in _numbers_as_text(known) else value for key, value in mapping.items()
    }
    assert read.model == "some/model" and read.left == ()
    assert model == SAMPLES["str"]


def _numbers_as_text(known: vllmflags.Table) -> set[str]:
    """Choices that the table holds as numbers come back as text, as vLLM's own parser takes them."""
    return {
        flag
        for flag, row in known.flags.items()
        if row.get("kind") == "choice" and not isinstance(next(iter(row["choices"])), str)
    }


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("-tp 2 -pp=3", {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}),
        ("--max-model-len=16384", {"max_model_len": 16384}),
        ("--max_model_len 8k", {"max_model_len": "8k"}),
        ("--no-enable-prefix-caching --enforce-eager", {"enable_prefix_caching": False, "enforce_eager": True}),
        ("-O3", {"optimization_level": 3}),
        ("-O 2", {"optimization_level": 2}),
        ("-O.mode=3 -cc.a.b x", {"compilation_config": {"mode": 3, "a": {"b": "x"}}}),
        ('--limit-mm-per-prompt {"image":4}', {"limit_mm_per_prompt": {"image": 4}}),
        ("--cudagraph-capture-sizes 1 2 4", {"cudagraph_capture_sizes": [1, 2, 4]}),
        ("--swap-space 4 --disable-log-requests", {"swap_space": 4, "disable_log_requests": True}),
        ("--max-model-len many", {"max_model_len": "many"}),
        ("--seed -1", {"seed": -1}),
        ("--rope-theta 1.5", {"rope_theta": 1.5}),
    ],
)  # fmt: skip
def test_forms_of_a_flag(words: str, flags: dict[str, object]) -> None:
    assert arguments(words.split()).flags == flags


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("vllm serve a/b --port 1", Serve("a/b", {"port": 1})),
        ("/opt/venv/bin/vllm serve --port 1 a/b", Serve("a/b", {"port": 1})),
        ("env A=b C=0 nohup vllm serve a/b", Serve("a/b", {}, {"A": "b", "C": "0"})),
        ("python3 -m vllm.entrypoints.openai.api_server --model a/b", Serve("a/b")),
        ("python -u -m vllm.entrypoints.cli.main serve a/b c", Serve("a/b", {}, {}, ("c",))),
        ("vllm serve", Serve("")),
        ("vllm bench serve --model a", None),
        ("vllm --version", None),
        ("echo -m vllm", None),
        ("", None),
    ],
)  # fmt: skip
def test_finding_the_server(words: str, expected: Serve | None) -> None:
    assert find(words.split()) == expected
