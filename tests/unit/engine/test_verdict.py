from __future__ import annotations

import pytest

from appliance.engine.verdict import LASTING, QUOTED_LINES, Ending, verdict_of
from appliance.policy.causes import CAUSES, Remedy
from appliance.wire.vllmcauses import Cause
from appliance.wire.vllmlog import Line, Reader


def log(*raw: str) -> list[Line]:
    reader = Reader()
    return [reader.read(line) for line in raw]


DENIED = log("huggingface_hub.errors.GatedRepoError: 403 Client Error.")
# Two processes that tell their stacks at once.
ABORTED = log("Fatal Python error: Fatal Python error: AbortedAborted", "", "Current thread 0xCurrent thread 0x00007f")


@pytest.mark.parametrize(
    ("ending", "lines", "cause", "status"),
    [
        (Ending(0, True, True), [], None, 0),
        (Ending(9, True, True), [], None, 0),
        (Ending(256, True, False), DENIED, None, 0),
        (Ending(0, False, True), [], "engine-died", 71),
        (Ending(9, False, True), [], "engine-died", 71),
        (Ending(0, False, True), DENIED, "hub-denied", 71),
        (Ending(0, False, False), [], "start-failed", 72),
        (Ending(4, False, False), [], "start-failed", 72),
        (Ending(256, False, False), DENIED, "hub-denied", 78),
        (Ending(6, False, False, late_s=3600.0), [], "start-timeout", 72),
        (Ending(6, False, False, late_s=3600.0), DENIED, "hub-denied", 78),
        (Ending(6, False, False, late_s=3600.0, own=len(DENIED)), [*DENIED, *ABORTED], "hub-denied", 78),
        (Ending(6, False, False, late_s=3600.0, own=0), ABORTED, "start-timeout", 72),
        (Ending(None, False, False), [], "start-failed", 72),
        (Ending(None, False, True), [], "engine-died", 71),
    ],
)
def test_endings(ending: Ending, lines: list[Line], cause: str | None, status: int) -> None:
    verdict = verdict_of(ending, lines)
    assert (verdict.cause, verdict.exit_status) == (cause, status)
    assert verdict.message


def test_a_cause_that_was_known_before() -> None:
    verdict = verdict_of(Ending(None, False, False), [], Cause("model-unreadable", "broken", "mend it", -1))
    assert (verdict.cause, verdict.message, verdict.exit_status) == ("model-unreadable", "broken (mend it)", 78)


@pytest.mark.parametrize("served", [True, False])
def test_what_the_log_says_beyond_the_cause_is_passed_on(served: bool) -> None:
    known = Cause("worker-died", "a worker died (SIGKILL)", "", -1, "killed")
    assert verdict_of(Ending(0, False, served), [], known).hint == "killed"


def test_a_cpu_that_cannot_run_the_build_is_named() -> None:
    assert "CPU" in verdict_of(Ending(4, False, False), []).message


def test_the_quoted_lines_are_those_around_the_cause() -> None:
    quiet = ["(APIServer pid=1) INFO 11-29 11:48:51 [x.py:1] on"] * 500
    lines = log(*quiet, "huggingface_hub.errors.GatedRepoError: 403 Client Error.", *quiet)
    quoted = verdict_of(Ending(256, False, False), lines).lines
    assert len(quoted) == QUOTED_LINES
    assert any("GatedRepoError" in line for line in quoted)


def test_what_lasts_is_what_the_supervisor_holds() -> None:
    assert {CAUSES[cause].remedy for cause in LASTING} <= {Remedy.HOLD, Remedy.FIX_HOST}
