from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.hardware import (
    REMEDIES,
    REPEATED_WITHIN_S,
    TABLE,
    Owner,
    Past,
    Step,
    fault_of,
    name_of,
    notes_of,
    reading_of,
)
from appliance.quantity import UNKNOWN
from appliance.samples import Gpu, Xid

A, B, FOREIGN = "0000:65:00", "0000:66:00", "0000:99:00"
OWNER = Owner(gpus=frozenset({A, B}), pids=frozenset({7}))
NOTHING, RESTART, RESET, REBOOT, REMOVE = Step


def burst(*numbers: int, pci: str = A, start: float = 0.0, **more: object) -> list[Xid]:
    return [Xid(t=start + t, number=number, pci=pci, **more) for t, number in enumerate(numbers)]  # type: ignore[arg-type]


def action(value: int, t: float = 50.0, pci: str = A) -> Xid:
    return Xid(t=t, number=154, pci=pci, recovery_action=value)


@pytest.mark.parametrize(
    ("xids", "cause", "step"),
    [
        (burst(31), "cuda-fault", RESTART),
        (burst(*[13] * 8), "cuda-fault", RESTART),
        (burst(43), "cuda-fault", RESTART),
        (burst(137), "cuda-fault", RESTART),
        (burst(8), "gpu-hardware-suspect", RESTART),
        (burst(94), "gpu-ecc", RESTART),
        (burst(95), "gpu-ecc", RESET),
        (burst(48, 171, 63, 94), "gpu-ecc", RESET),
        (burst(31, 48), "gpu-ecc", RESET),  # an illegal access that comes with a memory error is no program's
        ([*burst(48, 171, 63, 94), action(4)], "gpu-ecc", RESET),
        (burst(62, *[45] * 10, 119), "gpu-hardware-suspect", REBOOT),
        ([*burst(62, *([45] * 10), 119), action(1)], "gpu-hardware-suspect", RESET),
        (burst(120, 119, 119), "driver-unresponsive", REBOOT),
        (burst(79), "gpu-lost", REBOOT),
        (burst(74, 45), "nvlink-fault", RESET),
        (burst(46), "gpu-hardware-suspect", RESET),
        ([*burst(94), action(0)], "gpu-ecc", RESTART),
        ([*burst(48), action(0)], "gpu-ecc", RESTART),  # the driver knows better than the table
        ([*burst(48), action(2, 10.0), action(1, 20.0)], "gpu-ecc", RESET),  # its last word
        ([action(7)], "gpu-hardware-suspect", REBOOT),
        ([action(3)], "gpu-hardware-suspect", RESET),
    ],
)
def test_bursts(xids: list[Xid], cause: str, step: Step) -> None:
    for given_ in (xids, list(reversed(xids))):
        fault = fault_of(given_, OWNER)
        assert fault is not None
        assert (fault.cause, fault.step, fault.pci) == (cause, step, A)
        assert fault.remedy is REMEDIES[step]
        assert len(fault.evidence) == len(xids)


@pytest.mark.parametrize("numbers", [(63,), (45,), (45, 45), (37,), (92,), (121,), (999,), (171,), (141, 63)])
def test_what_asks_for_nothing(numbers: tuple[int, ...]) -> None:
    assert fault_of(burst(*numbers), OWNER) is None
    assert fault_of([action(0)], OWNER) is None
    assert fault_of([], OWNER) is None


@pytest.mark.parametrize(
    ("xid", "ours"),
    [
        (Xid(t=0.0, number=31, pci=A, pid=7, process="VLLM::EngineCor"), True),
        (Xid(t=0.0, number=31, pci=A, pid=8, process="VLLM::Worker_TP"), True),  # died before anybody listed it
        (Xid(t=0.0, number=31, pci=A, pid=8, process="blender"), False),
        (Xid(t=0.0, number=31, pci=A, process="blender"), False),
        (Xid(t=0.0, number=31, pci=A, pid=8), False),
        (Xid(t=0.0, number=31, pci=A), True),
        (Xid(t=0.0, number=31, pci=FOREIGN, pid=7), False),
        (Xid(t=0.0, number=79, pci=A, pid=8, process="blender"), True),  # the GPU is gone for everybody
        (Xid(t=0.0, number=95, pci=A, pid=8, process="blender"), True),
        (Xid(t=0.0, number=48, pci=A, pid=8, process="blender"), False),
        (Xid(t=0.0, number=79, pci=FOREIGN), False),
        (Xid(t=0.0, number=79), True),
        (Xid(t=0.0, number=24007, pci="0000:aa:00", switch=True), True),
    ],
)
def test_whose_fault_it_is(xid: Xid, ours: bool) -> None:
    assert OWNER.has(xid) is ours


def test_an_engine_without_a_gpu_has_no_faults_of_gpus() -> None:
    none = Owner(gpus=frozenset())
    assert fault_of([*burst(79), Xid(t=0.0, number=154, recovery_action=2)], none) is None
    assert reading_of((), none, code=18) is None
    assert not none.has(Xid(t=0.0, number=24007, pci="0000:aa:00", switch=True))


@pytest.mark.parametrize(("t", "noise"), [(99.0, False), (100.0, True), (159.0, True), (160.0, False)])
def test_our_own_sigkill_makes_noise(t: float, noise: bool) -> None:
    killed = burst(43, start=t)
    assert (fault_of(killed, OWNER, killed_at=100.0) is None) is noise
    assert fault_of(burst(79, start=t), OWNER, killed_at=100.0) is not None


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ([A], "cuda-fault"),
        ([A, A], "gpu-hardware-suspect"),
        ([A, B], "cuda-fault"),
    ],
)
def test_a_fault_that_stays_with_one_gpu_is_that_gpus(before: list[str], cause: str) -> None:
    past = Past(xids=[Xid(t=float(t), number=31, pci=pci) for t, pci in enumerate(before)])
    fault = fault_of(burst(31, start=600.0), OWNER, past)
    assert fault is not None
    assert (fault.cause, fault.step) == (cause, RESTART)
    late = fault_of(burst(31, start=REPEATED_WITHIN_S + 600.0), OWNER, past)
    assert late is not None and late.cause == "cuda-fault"


@pytest.mark.parametrize(
    ("number", "before", "step"),
    [
        (94, NOTHING, RESTART),
        (94, RESTART, RESET),
        (48, RESTART, RESET),
        (48, RESET, REBOOT),
        (79, REBOOT, REMOVE),
        (79, REMOVE, REMOVE),
        (94, REBOOT, REMOVE),
        (31, RESTART, RESTART),  # programs may fail more than once
        (31, RESET, REBOOT),
    ],
)
def test_the_ladder_of_a_gpu(number: int, before: Step, step: Step) -> None:
    fault = fault_of(burst(number), OWNER, Past(steps={A: before}))
    assert fault is not None and fault.step is step
    other = fault_of(burst(number), OWNER, Past(steps={B: before}))
    assert other is not None and other.step is fault_of(burst(number), OWNER).step  # type: ignore[union-attr]


@given(
    st.lists(st.tuples(st.sampled_from([*TABLE, 154, 999]), st.sampled_from([A, B, FOREIGN, ""])), max_size=12),
    st.sampled_from(list(Step)),
    st.sampled_from([UNKNOWN, *range(8)]),
)
def test_any_burst_has_a_cause_of_the_table_and_never_goes_down(
    told: list[tuple[int, str]], before: Step, wanted: object
) -> None:
    xids = [Xid(t=float(t), number=n, pci=p, recovery_action=wanted) for t, (n, p) in enumerate(told)]  # type: ignore[arg-type]
    fault = fault_of(xids, OWNER, Past(steps={A: before, B: before}))
    if fault is not None:
        assert CAUSES[fault.cause].remedy is not Remedy.NONE
        assert fault.step is not NOTHING and fault.reason
        assert fault.pci != FOREIGN
        assert not fault.pci or fault.step >= before


@pytest.mark.parametrize(
    ("gpu", "cause", "step"),
    [
        (Gpu(pci=A), None, None),
        (Gpu(pci=A, recovery_action=0, remapped_rows=(3, 0, False, False)), None, None),
        (Gpu(pci=A, recovery_action=1), "gpu-hardware-suspect", RESET),
        (Gpu(pci=A, recovery_action=2), "gpu-hardware-suspect", REBOOT),
        (Gpu(pci=A, recovery_action=99), None, None),
        (Gpu(pci=A, error="GPU is lost", code=15), "gpu-lost", REBOOT),
        (Gpu(pci=A, error="GPU requires reset", code=16), "gpu-hardware-suspect", RESET),
        (Gpu(pci=A, error="Unknown Error", code=999), None, None),
        (Gpu(pci=A, remapped_rows=(0, 1, True, False)), None, None),
        (Gpu(pci=A, remapped_rows=(0, 1, False, True)), "gpu-hardware-suspect", REMOVE),
    ],
)
def test_readings(gpu: Gpu, cause: str | None, step: Step | None) -> None:
    fault = reading_of((gpu, Gpu(pci=B)), OWNER)
    assert (fault and fault.cause, fault and fault.step) == (cause, step)
    foreign = replace(gpu, pci=FOREIGN)
    assert reading_of((Gpu(pci=A), Gpu(pci=B), foreign), OWNER) is None


def test_rows_that_are_to_be_remapped_can_wait() -> None:
    assert notes_of((Gpu(pci=A, remapped_rows=(0, 1, True, False)), Gpu(pci=B)), OWNER) == (
        f"GPU {A} remaps rows of its memory at its next reset",
    )


@pytest.mark.parametrize(
    ("code", "cause", "step"),
    [(15, "gpu-lost", REBOOT), (16, "gpu-hardware-suspect", RESET), (18, "driver-mismatch", REBOOT),
     (9, "driver-mismatch", RESET), (3, None, None), (999, None, None), (UNKNOWN, None, None)],
)  # fmt: skip
def test_nvmls_errors(code: int, cause: str | None, step: Step | None) -> None:
    fault = reading_of((), OWNER, code=code)
    assert (fault and fault.cause, fault and fault.step) == (cause, step)


def test_a_silent_driver_and_a_gpu_that_is_missing() -> None:
    silent, missing = reading_of((), OWNER, silent=True), reading_of((Gpu(pci=A),), OWNER)
    assert silent is not None and silent.cause == "driver-unresponsive"
    assert missing is not None and (missing.cause, missing.pci) == ("gpu-lost", B)
    assert reading_of((Gpu(pci=A), Gpu()), OWNER) is None  # one that does not say which it is may be the other


def test_names() -> None:
    assert name_of(Xid(t=0.0, number=79, pci=A, pid=7, process="VLLM::Worker")) == f"Xid 79 on {A} of VLLM::Worker (7)"
    assert name_of(Xid(t=0.0, number=79)) == "Xid 79 on a GPU"
    assert name_of(Xid(t=0.0, number=24007, pci=B, switch=True)) == f"SXid 24007 on {B}"
