from __future__ import annotations

import pytest

from appliance.engine.timetable import Timetable
from appliance.wire.vllmlog import Progress

Steps = list[tuple[float, str, str]]
START: Steps = [
    (7.9, "starting", "reading the model's configuration"),
    (8.0, "starting", "reading the model's configuration (LlamaForCausalLM)"),
    (11.0, "starting", "starting the engine's processes"),
    (19.2, "loading", "loading weights"),
    (20.0, "loading", "loading weights 1 of 2 shards"),
    (20.4, "compiling", "engine initialised"),
    (24.4, "warming", "waiting for the first real answer"),
    (24.8, "serving", "serving m"),
]


def timetable(steps: Steps) -> Timetable:
    made = Timetable(Progress("starting", "starting vLLM"), 1000.0)
    for at, phase, message in steps:
        made.moved(Progress(phase, message), 1000.0 + at)
    return made


def test_a_whole_start() -> None:
    made = timetable(START)
    assert made.phases == {"starting": 19.2, "loading": 1.2, "compiling": 4.0, "warming": 0.4}
    assert made.told == (
        "24.8 s: starting 19.2 (starting vLLM 7.9, reading the model's configuration 3.1, starting the engine's "
        "processes 8.2), loading 1.2, compiling 4.0, warming 0.4"
    )
    assert made.fields == {"LLM_START_S": "24.80", "LLM_STARTING_S": "19.20", "LLM_LOADING_S": "1.20",
                           "LLM_COMPILING_S": "4.00", "LLM_WARMING_S": "0.40"}  # fmt: skip
    assert sum(made.phases.values()) == pytest.approx(made.total)


def test_a_phase_that_was_not_seen_is_left_out_and_the_rest_is_the_whole() -> None:
    made = timetable([step for step in START if step[1] not in ("compiling", "starting")])
    assert made.phases == {"starting": 19.2, "loading": 5.2, "warming": 0.4}
    assert made.told == "24.8 s: starting 19.2, loading 5.2, warming 0.4"


@pytest.mark.parametrize("last", ["stopping", "exited"])
def test_a_start_that_ended_has_not_gone_through_its_last_phase(last: str) -> None:
    made = timetable([*START[:5], (30.0, last, "asked to stop")])
    assert made.phases == {"starting": 19.2} and made.total is None
    assert made.fields == {"LLM_STARTING_S": "19.20"}


def test_an_engine_that_serves_changes_nothing_more() -> None:
    made = timetable([*START, (500.0, "stopping", "asked to stop"), (501.0, "exited", "")])
    assert made.total == 24.8 and "serving" not in made.phases
