from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.failure import DUMPED, EXITED, KILLED, Evidence, Exit, Verdict, failure_of
from appliance.quantity import UNKNOWN, Maybe

OK, STATUS = Exit("success", EXITED, 0), "exit-code"


def verdict(cause: str, phase: str = "serving", **more: object) -> Verdict:
    return Verdict(cause=cause, phase=phase, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "said", "cause", "remedy"),
    [
        (Exit(STATUS, EXITED, 71), None, "engine-died", Remedy.RESTART),
        (Exit(STATUS, EXITED, 71), verdict("worker-died"), "worker-died", Remedy.RESTART),
        (Exit(STATUS, EXITED, 71), verdict("cuda-oom-serving"), "cuda-oom-serving", Remedy.RESTART),
        (Exit(STATUS, EXITED, 72), None, "start-failed", Remedy.RESTART),
        (Exit(STATUS, EXITED, 72), verdict("kv-none", "compiling"), "kv-none", Remedy.HOLD),
        (Exit(STATUS, EXITED, 72), verdict("gpu-memory-taken", "loading"), "gpu-memory-taken", Remedy.WAIT),
        (Exit(STATUS, EXITED, 72), verdict("disk-full", "loading"), "disk-full", Remedy.FIX_HOST),
        (Exit(STATUS, EXITED, 71), verdict("gpu-lost"), "gpu-lost", Remedy.REBOOT),
        # 78 is believed whatever the launcher calls it
        (Exit(STATUS, EXITED, 78), None, "config-error", Remedy.HOLD),
        (Exit(STATUS, EXITED, 78), verdict("start-failed", "starting"), "config-error", Remedy.HOLD),
        (Exit(STATUS, EXITED, 78), verdict("model-not-found", "starting"), "model-not-found", Remedy.HOLD),
        (Exit(STATUS, EXITED, 78), verdict("worker-died", "loading"), "worker-died", Remedy.HOLD),
        # the kernel beats the launcher
        (Exit("oom-kill", KILLED, 9), verdict("engine-died"), "host-oom-cgroup", Remedy.WAIT),
        (Exit("oom-kill", KILLED, 9), verdict("host-oom-global"), "host-oom-global", Remedy.WAIT),
        (Exit("oom-kill", EXITED, 71), verdict("cuda-oom-serving"), "host-oom-cgroup", Remedy.WAIT),
        # limits of systemd's
        (Exit("timeout", KILLED, 9), None, "start-timeout", Remedy.RESTART),
        (Exit("timeout", KILLED, 15), verdict("start-failed", "loading"), "start-timeout", Remedy.RESTART),
        (Exit("timeout", KILLED, 9), verdict("engine-died", "serving"), "engine-died", Remedy.RESTART),
        # the launcher itself
        (Exit("signal", KILLED, 9), None, "engine-died", Remedy.RESTART),
        (Exit("core-dump", DUMPED, 11), None, "engine-died", Remedy.RESTART),
        (Exit(STATUS, EXITED, 1), None, "unknown", Remedy.RESTART),
        (Exit(STATUS, EXITED, 203), None, "start-failed", Remedy.RESTART),
        (Exit("resources"), None, "unknown", Remedy.RESTART),
        # a cause that no table has, and one that is no fault, are not believed
        (Exit(STATUS, EXITED, 71), verdict("bad-weather"), "engine-died", Remedy.RESTART),
        (Exit(STATUS, EXITED, 71), verdict("idle"), "engine-died", Remedy.RESTART),
    ],
)
def test_cause_and_remedy(end: Exit, said: Verdict | None, cause: str, remedy: Remedy) -> None:
    failure = failure_of(end, said)
    assert failure is not None
    assert (failure.cause, failure.remedy) == (cause, remedy)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (OK, None),
        (Exit(""), None),
        (OK, verdict("", requested=True)),
        (Exit("timeout", KILLED, 9), verdict("engine-died", requested=True)),
    ],
)
def test_an_end_that_was_asked_for_is_no_failure(end: Exit, said: Verdict | None) -> None:
    assert failure_of(end, said) is None


def test_the_launchers_sentence_is_the_reason() -> None:
    failure = failure_of(Exit(STATUS, EXITED, 72), verdict("kv-none", message="no room: raise gpu_memory_utilization"))
    assert failure is not None
    assert failure.reason == "no room: raise gpu_memory_utilization"


def test_without_it_the_facts_are() -> None:
    failure = failure_of(Exit("signal", KILLED, 9))
    assert failure is not None
    assert "SIGKILL" in failure.reason


@given(
    st.sampled_from(["exit-code", "signal", "core-dump", "timeout", "oom-kill", "resources", "protocol", "watchdog"]),
    st.sampled_from([0, EXITED, KILLED, DUMPED]),
    st.integers(0, 255),
    st.one_of(st.none(), st.sampled_from([*CAUSES, "", "nonsense"])),
    st.sampled_from(["starting", "loading", "serving", "exited", ""]),
)
def test_every_end_gets_a_cause_of_the_table_that_is_a_fault(
    result: str, code: int, status: int, cause: str | None, phase: str
) -> None:
    failure = failure_of(Exit(result, code, status), None if cause is None else verdict(cause, phase))
    assert failure is not None
    assert CAUSES[failure.cause].remedy is not Remedy.NONE
    assert failure.reason
    if code == EXITED and status == 78:
        assert failure.remedy not in (Remedy.RESTART, Remedy.WAIT)


@pytest.mark.parametrize(
    ("said", "suspects", "cause"),
    [
        (verdict("engine-exception", message="KeyError"), 1, "poison-request"),
        (verdict("cuda-fault"), 1, "poison-request"),
        (verdict("worker-died"), 1, "poison-request"),
        (verdict("worker-died", hint="killed"), 1, "worker-died"),  # no request does that either
        (verdict("engine-exception"), 2, "engine-exception"),  # which of them it is, nobody can tell
        (verdict("engine-exception"), 0, "engine-exception"),
        (verdict("engine-exception"), UNKNOWN, "engine-exception"),
        (verdict("engine-exception", "loading"), 1, "engine-exception"),  # nothing was sent to it yet
        (verdict("cuda-oom-serving"), 1, "cuda-oom-serving"),  # the ladder knows what to do
        (verdict("engine-died"), 1, "engine-died"),  # killed from outside: no request does that
        (verdict("gpu-lost"), 1, "gpu-lost"),
    ],
)
def test_a_request_that_was_there_at_an_earlier_crash(said: Verdict, suspects: Maybe[int], cause: str) -> None:
    failure = failure_of(Exit(STATUS, EXITED, 71), said, Evidence(suspects=suspects))
    assert failure is not None and failure.cause == cause
    assert failure.remedy is CAUSES[cause].remedy
    if cause == "poison-request":
        assert said.cause in failure.reason and said.message in failure.reason
    assert any("2 requests were in flight" in fact for fact in failure.evidence) == (suspects == 2)
