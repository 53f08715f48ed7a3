"""Thirty days of mixed load end without a single hang verdict; one of them in every run."""

from __future__ import annotations

import pytest

from appliance.cli.replay import replayed
from appliance.config.model import Supervisor
from appliance.wire import timeline
from tests.support.soak import DAY_S, day

DAYS = [pytest.param(number, marks=[pytest.mark.full] if number else []) for number in range(30)]


@pytest.mark.parametrize("number", DAYS)
def test_a_day_without_a_hang_has_no_hang_verdict(number: int) -> None:
    scene = day(number)
    assert scene.t - scene.lines[1]["t"] >= DAY_S
    recording = timeline.read(scene.text(), f"day {number}")
    found = list(replayed(recording.samples, recording.setting, Supervisor()))
    assert {judgement.verdict for judgement in found} <= {"ok", "suspect", "unknown"}
    assert {judgement.action for judgement in found} <= {"none", "evidence"}
