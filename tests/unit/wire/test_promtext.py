from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.promtext import Sample, family, merge_labelled, number, samples

TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 2.0
# HELP vllm:ttft_seconds x
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{engine="0",le="+Inf"} 3
vllm:ttft_seconds_count{engine="0"} 3
vllm:bare 4
python_info{version="3"} 1.0
"""


def test_samples() -> None:
    found = list(samples(TEXT + 'odd{a="x\\"y\\\\z\\n"} NaN\nbroken line here\nname{} x\n'))
    assert found[0] == Sample("vllm:num_requests_running", {"engine": "0", "model_name": "a"}, 2.0)
    assert found[-1].labels == {"a": 'x"y\\z\n'} and math.isnan(found[-1].value)


def test_merging_keeps_families_together_and_names_the_engine() -> None:
    merged = merge_labelled({"chat": TEXT, "chat-2": TEXT}, "engine", "vllm:")
    assert merged.count("# TYPE vllm:num_requests_running gauge") == 1
    assert 'vllm:num_requests_running{engine="chat",exported_engine="0",model_name="a"} 2.0' in merged
    assert 'vllm:bare{engine="chat-2"} 4' in merged and "python_info" not in merged
    names = [line.split("{")[0] for line in merged.splitlines() if not line.startswith("#")]
    assert names.count("vllm:num_requests_running") == 2 and names[0] == names[1]
    block = merged[merged.index("# TYPE vllm:ttft_seconds") :]
    assert block.index("vllm:ttft_seconds_bucket") < block.index("vllm:ttft_seconds_count")
    assert len(list(samples(merged))) == 8


@pytest.mark.parametrize(
    "line",
    ["vllm:x{bad} 1", 'vllm:x{a="b"} abc', 'vllm:x{a="\\q"} 1', 'vllm:x{1="b"} 1', 'vllm:x{a="b"c="d"} 1',
     'vllm:x{a="b",a="c"} 1', 'vllm:x{engine="b",exported_engine="c"} 1', 'vllm:x{a="b"}} 1', "vllm:x{} 1_0",
     "# TYPE vllm:x bogus", "# TYPE vllm:x", "# TYPE vllm:x counter more", "# TYPE vllm:x{ counter",
     "# HELP vllm:x{ y"],
)  # fmt: skip
def test_a_line_that_would_cost_the_others_theirs_is_left_out(line: str) -> None:
    """Prometheus refuses an exposition as a whole, with what all the other engines and the gateway say."""
    merged = merge_labelled({"chat": TEXT, "odd": f"{line}\nvllm:y 1\n"}, "engine", "vllm:")
    assert "vllm:x" not in merged and 'vllm:y{engine="odd"} 1' in merged
    assert 'vllm:bare{engine="chat"} 4' in merged


@pytest.mark.parametrize("labels", ['a="b",', 'a="b\\n\\\\\\"",c=""', "", 'le="+Inf"', 'a="}{ ,="'])
@pytest.mark.parametrize("value", ["1", "1.5e+09", "NaN", "+Inf", "-1"])
def test_a_line_that_can_be_read_is_kept(labels: str, value: str) -> None:
    merged = merge_labelled({"chat": f"vllm:x{{{labels}}} {value}\n"}, "engine", "vllm:")
    joined = ",".join(['engine="chat"', *([labels.rstrip(",")] if labels else [])])
    assert merged == f"vllm:x{{{joined}}} {value}\n"


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=12)), st.floats(allow_nan=False))
def test_what_is_written_is_read_back(labels: dict[str, str], value: float) -> None:
    text = family("m", "gauge", "help", [(labels, value)])
    assert list(samples(text)) == [Sample("m", labels, value)]


def test_numbers_and_empty_families() -> None:
    assert [number(v) for v in (1.0, 0.5, 1e20)] == ["1", "0.5", "1e+20"]
    assert family("m", "gauge", "x", []) == ""
