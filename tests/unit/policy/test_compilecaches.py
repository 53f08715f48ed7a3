from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.compilecaches import KEPT, broken, key, superfluous


@pytest.mark.parametrize(
    ("runtime", "gpus", "model", "readable"),
    [
        ("0.32.0-cpu", (), "builtin:smollm2-135m", "0.32.0-cpu_smollm2-135m"),
        ("0.32.0-cuda", ("NVIDIA H200", "NVIDIA H200"), "Qwen/Qwen2.5-14B-Instruct-AWQ",
         "0.32.0-cuda_nvidia-h200_qwen2.5-14b-instruct-awq"),
        ("0.32.0-cuda", ("NVIDIA L4", "NVIDIA A100-SXM4-80GB"), "/srv/models/mine/",
         "0.32.0-cuda_nvidia-a100-sxm4-80gb+nvidia-l4_mine"),
        ("0.32.0-cuda", (), "x", "0.32.0-cuda_x"),
    ],
)  # fmt: skip
def test_a_key_is_readable(runtime: str, gpus: tuple[str, ...], model: str, readable: str) -> None:
    assert re.fullmatch(re.escape(readable) + "-[0-9a-f]{6}", key(runtime, gpus, model))


def test_models_of_the_same_last_name_are_told_apart() -> None:
    assert key("r", (), "one/model") != key("r", (), "other/model")


def test_runtimes_that_take_the_same_name_one_after_the_other_are_told_apart() -> None:
    assert len({key("0.32.0-cuda", (), "model", build) for build in ("", "3.11 lock-a", "3.13 lock-a", "3.11 b")}) == 4


@given(st.text(), st.lists(st.text(), max_size=8), st.text())
def test_a_key_is_one_short_name(runtime: str, gpus: list[str], model: str) -> None:
    made = key(runtime, gpus[:2], model)
    assert re.fullmatch(r"[a-z0-9][a-z0-9.+_-]*", made.lstrip("-_+")) and "/" not in made
    assert len(made) <= 4 * 32 + 12 and not made.startswith(".")
    assert made == key(runtime, gpus[1::-1], model)


def going(used: dict[str, float], current: str) -> list[str]:
    return [one.name for one in superfluous(used, current)]


def test_the_newest_few_are_kept_and_the_one_in_use_whatever_its_age() -> None:
    used = {"now": 0.0, "a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0}
    assert going(used, "now") == ["d", "e"]
    assert superfluous(used, "now")[0].reason == "3 others were used since"
    assert going({}, "now") == going({"now": 1.0, "a": 2.0}, "now") == []


def test_what_was_moved_away_takes_no_place_of_what_works() -> None:
    used = {"now": 9.0, "now.broken-1": 6.0, "now.broken-2": 7.0, "a": 5.0, "b": 4.0, "c": 3.0}
    assert going(used, "now") == ["now.broken-1"]
    assert broken("now", used) == "now.broken-3"
    assert broken("a", used) == "a.broken-1"


@given(st.dictionaries(st.sampled_from([f"k{n}" for n in range(12)]), st.floats(0, 1e9)), st.sampled_from(["k0", "k1"]))
def test_it_is_bounded(used: dict[str, float], current: str) -> None:
    left = set(used) - set(going(used, current))
    assert len(left - {current}) == min(KEPT, len(set(used) - {current}))
    assert (current in left) == (current in used)
    assert all(used[one] <= min(used[kept] for kept in left - {current}) for one in going(used, current))
