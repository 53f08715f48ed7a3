from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.reclaim import EMPTY_S, MEMORY_S, Left, Look, Progress, Step, is_held, next_step, told
from appliance.quantity import UNKNOWN, Maybe, Unknown
from appliance.samples import Gpu, Nvml

CORE = Left(7, "VLLM::EngineCor", "D")
NEW = Progress("run")
RECORDED = Progress("run", recorded=True)
ABORTED = replace(RECORDED, aborted=100.0)
KILLED = replace(ABORTED, killed=103.0)
LIVES = Look(run="run", known=True, running=True, net=False, left=(CORE,), held=UNKNOWN, now=200.0)
GONE = replace(LIVES, running=False, left=(), empty_s=0.0)


@pytest.mark.parametrize(
    ("progress", "look", "step"),
    [
        (NEW, replace(LIVES, known=False), Step.WAIT),
        (NEW, LIVES, Step.RECORD),
        (NEW, GONE, Step.RECORD),  # it died by itself meanwhile: the evidence is taken all the same
        (NEW, replace(LIVES, run="another"), Step.OVERTAKEN),
        (NEW, replace(LIVES, run="another", net=True), Step.RECORD),  # that one has ended as well
        (RECORDED, LIVES, Step.ABORT),
        (RECORDED, GONE, Step.DONE),
        (ABORTED, replace(LIVES, now=102.9), Step.WAIT),
        (ABORTED, replace(LIVES, now=103.0), Step.KILL),
        (ABORTED, replace(LIVES, now=90.0), Step.KILL),  # the clock was set back
        (ABORTED, replace(LIVES, now=104.0, left=UNKNOWN), Step.KILL),
        (KILLED, replace(LIVES, now=103.1), Step.KILL),  # another supervisor's word: nobody knows whether it was sent
        (KILLED, replace(LIVES, now=103.1, asked_s=0.1), Step.WAIT),
        (KILLED, replace(LIVES, now=109.0, asked_s=5.0), Step.KILL),
        (KILLED, replace(LIVES, asked_s=1.0, taken_s=EMPTY_S - 1), Step.WAIT),
        (KILLED, replace(LIVES, asked_s=1.0, taken_s=EMPTY_S), Step.UNKILLABLE),
        (KILLED, replace(LIVES, now=9.0, asked_s=1.0, taken_s=EMPTY_S), Step.UNKILLABLE),  # the clock was set back
        (KILLED, replace(LIVES, now=999.0, asked_s=1.0, taken_s=1.0), Step.WAIT),  # and forward
        (KILLED, replace(LIVES, now=999.0), Step.KILL),  # the word is old, and nobody knows whether it was sent
        (KILLED, replace(LIVES, now=999.0, asked_s=5.0), Step.KILL),  # systemd does not take it
        (KILLED, replace(LIVES, left=UNKNOWN, asked_s=1.0, taken_s=999.0), Step.WAIT),  # unseen is not unkillable
        (KILLED, replace(GONE, left=UNKNOWN), Step.DONE),
        (KILLED, replace(GONE, net=True), Step.CUT),
        (KILLED, replace(GONE, held=True, empty_s=MEMORY_S - 1), Step.WAIT),
        (KILLED, replace(GONE, held=True, empty_s=MEMORY_S), Step.DONE),
        (KILLED, replace(GONE, held=False), Step.DONE),
        (KILLED, GONE, Step.DONE),
    ],
)
def test_the_next_step(progress: Progress, look: Look, step: Step) -> None:
    found, reason = next_step(progress, look)
    assert found is step and reason


def test_the_unkillable_are_named() -> None:
    _, reason = next_step(KILLED, replace(LIVES, taken_s=EMPTY_S))
    assert "VLLM::EngineCor (pid 7, state D) cannot be killed" in reason
    assert told([CORE] * 8).endswith(" and 2 more")


looks = st.builds(
    Look,
    run=st.sampled_from(["run", "another", ""]),
    known=st.booleans(),
    running=st.booleans(),
    net=st.booleans(),
    left=st.sampled_from([UNKNOWN, (), (CORE,)]),
    held=st.sampled_from([UNKNOWN, True, False]),
    now=st.floats(0, 300),
    asked_s=st.none() | st.floats(0, 100),
    taken_s=st.none() | st.floats(0, 100),
    empty_s=st.none() | st.floats(0, 100),
)
progresses = st.builds(
    Progress,
    run=st.just("run"),
    recorded=st.booleans(),
    aborted=st.none() | st.floats(0, 300),
    killed=st.none() | st.floats(0, 300),
)


@given(progresses, looks)
def test_the_laws(progress: Progress, look: Look) -> None:
    step, _ = next_step(progress, look)
    if step in (Step.ABORT, Step.KILL, Step.CUT, Step.UNKILLABLE):
        assert progress.recorded and look.known
        assert look.run == progress.run or not look.running or look.net
    if step is Step.UNKILLABLE:
        assert look.left is not UNKNOWN and look.left and look.taken_s is not None
    if step is Step.ABORT:
        assert progress.aborted is None


def reading(**gpu: object) -> Nvml:
    return Nvml(t=1.0, gpus=(Gpu(pci="0000:18:00", **gpu),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nvml", "before", "held"),
    [
        (UNKNOWN, UNKNOWN, UNKNOWN),
        (Nvml(t=1.0, error="deadline"), UNKNOWN, UNKNOWN),
        (Nvml(t=1.0), UNKNOWN, UNKNOWN),
        (reading(pids=(7, 9)), UNKNOWN, True),
        (reading(pids=(9,)), UNKNOWN, False),
        (reading(pids=(), mem_used_mib=70000.0), UNKNOWN, False),
        (reading(mem_used_mib=500.0), UNKNOWN, UNKNOWN),
        (reading(mem_used_mib=520.0), reading(mem_used_mib=500.0), False),
        (reading(mem_used_mib=530.0), reading(mem_used_mib=500.0), True),
        (reading(), reading(mem_used_mib=500.0), UNKNOWN),
    ],
)
def test_whether_memory_is_held(nvml: Maybe[Nvml], before: Maybe[Nvml], held: bool | Unknown) -> None:
    assert is_held(nvml, frozenset({7, 8}), before) is held
