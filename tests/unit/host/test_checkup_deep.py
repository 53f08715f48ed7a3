"""Trials in children: what two ranks amount to, whatever they do, and a disk that is read past the cache."""

from __future__ import annotations

import asyncio
import time
from itertools import combinations
from pathlib import Path

import pytest

from appliance.gpufacts import Tried
from appliance.host.checkup import deep
from tests.support import fakeranks

UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def trial(python: Path, *pairs: tuple[int, int], trial_s: float = 5.0) -> dict[str, Tried]:
    notes: list[str] = []
    found = asyncio.run(deep.try_links(str(python), UUIDS, pairs or ((0, 1),), notes.append, trial_s=trial_s))
    assert notes
    return {each.way: each for each in found if each.pair == (0, 1)}


def test_gpus_that_work_together(tmp_path: Path) -> None:
    found = trial(fakeranks.runtime_python(tmp_path))
    assert {way: each.outcome for way, each in found.items()} == {"nccl": "works", "copy": "works"}
    assert found["nccl"].bytes_s == 20 * (1 << 30)
    calls = (tmp_path / "calls").read_text()
    assert sorted(calls.splitlines()) == ["copy  GPU-a,GPU-b ", "nccl 0 GPU-a,GPU-b ", "nccl 1 GPU-a,GPU-b "]


@pytest.mark.parametrize(
    ("behaviour", "outcome", "detail"),
    [
        (fakeranks.HANGS, "hangs", "killed"),
        (fakeranks.WRONG, "wrong", "not those sent"),
        (fakeranks.BROKEN, "fails", "status 3"),
        (fakeranks.ERROR, "fails", "NCCL error"),
        ("echo Segmentation fault", "fails", "without a word"),
        # one rank ends well and the other waits for it
        (f'if [ "$4" = 0 ]; then {fakeranks.GOOD}; else {fakeranks.HANGS}; fi', "hangs", "killed"),
    ],
)
def test_what_goes_wrong_is_tried_without_p2p(tmp_path: Path, behaviour: str, outcome: str, detail: str) -> None:
    begun = time.monotonic()
    found = trial(fakeranks.runtime_python(tmp_path, nccl=behaviour), trial_s=0.5)
    assert (found["nccl"].outcome, found["nccl-without-p2p"].outcome) == (outcome, "works")
    assert detail in found["nccl"].detail and time.monotonic() - begun < 10
    assert "nccl 0 GPU-a,GPU-b 1" in (tmp_path / "calls").read_text()


def test_a_copy_that_arrives_otherwise(tmp_path: Path) -> None:
    found = trial(fakeranks.runtime_python(tmp_path, copy=fakeranks.WRONG))
    assert (found["nccl"].outcome, found["copy"].outcome) == ("works", "wrong")
    assert "nccl-without-p2p" not in found


def test_a_runtime_that_is_not_there(tmp_path: Path) -> None:
    assert trial(tmp_path / "nothing")["nccl"].outcome == "fails"


def test_pairs_of_one_round_share_no_gpu() -> None:
    pairs = list(combinations(range(8), 2))
    made = deep.rounds(pairs)
    assert sorted(pair for turn in made for pair in turn) == pairs
    for turn in made:
        gpus = [gpu for pair in turn for gpu in pair]
        assert len(gpus) == len(set(gpus))
    assert len(made) <= 13 and deep.rounds([]) == []


def test_the_disk_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * ((8 << 20) + 5))
    found = asyncio.run(deep.read_speed(str(tmp_path)))
    assert found.path.endswith("model.safetensors") and found.read == (8 << 20) + 5 and found.seconds > 0
