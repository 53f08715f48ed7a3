"""Faults of GPUs, from the kernel's line and NVML to what becomes of the engine: all at once, an engine each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from appliance.wire.incident import Incident
from tests.support.gpustage import SETTINGS, SPIN, GpuStage, Rig, gpus
from tests.support.stage import unit

pytestmark = pytest.mark.slow
RESET, REBOOT = "nvidia-smi --gpu-reset", "reboot the machine"
OOPS = "CUDA error: an illegal memory access was encountered"


class Row(NamedTuple):
    """What happens; then the engine's state, the cause, and words of the reason that an operator is shown."""

    happens: Callable[[GpuStage, str], None]
    state: str
    cause: str
    words: str
    cards: int = 1


def dies(*xids: int, cause: str = "cuda-fault", message: str = OOPS) -> Callable[[GpuStage, str], None]:
    """The kernel reports, then the engine ends by itself."""

    def happens(stage: GpuStage, name: str) -> None:
        for number in xids:
            stage.xid(name, number)
        stage.dies(name, cause, message)

    return happens


def stands(*xids: int, **figures: object) -> Callable[[GpuStage, str], None]:
    """The kernel or NVML reports, and the engine stands still."""

    def happens(stage: GpuStage, name: str) -> None:
        for number in xids:
            stage.xid(name, number)
        stage[name].stands_still(running=1)
        stage[name].shows({**SPIN, **figures})

    return happens


def asks_for(action: int, text: str) -> Callable[[GpuStage, str], None]:
    """The driver itself says what its GPU needs, in the same burst."""

    def happens(stage: GpuStage, name: str) -> None:
        stage.xid(name, 94)
        stage.xid(name, 154, f"GPU recovery action changed from 0x0 (None) to 0x{action:x} ({text})")
        stage.dies(name, "engine-exception", "KeyError")

    return happens


def late(stage: GpuStage, name: str) -> None:
    """The kernel's line comes after the end that it explains, and after its restart was decided."""
    stage.dies(name, "engine-died", "gone")
    stage.wait(lambda: stage.fleet(name).get("not_before"), "its restart is decided")
    stage.xid(name, 79, "GPU has fallen off the bus.")


def switch(stage: GpuStage, name: str) -> None:
    stage.kernel("nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1 Engine instance 58")
    stands()(stage, name)


PAUSE = 10  # seconds before a restart
# What works on must not seem to stand still between two looks that a busy machine has made late.
PATIENT = SETTINGS.replace('suspect = "1s"', 'suspect = "4s"').replace('"1500ms"', '"5s"').replace('"3s"', '"5s"')
LIMIT = 45.0
ROWS = {
    "application": Row(dies(31), "serving", "cuda-fault", OOPS),
    "contained": Row(dies(63, 94), "serving", "gpu-ecc", "contained memory error"),
    "ecc": Row(dies(48, 63, 94, 45), "held", "gpu-ecc", RESET),
    "uncontained": Row(stands(95), "held", "gpu-ecc", RESET),
    "lost": Row(dies(79, cause="engine-died"), "held", "gpu-lost", REBOOT),
    "late": Row(late, "held", "gpu-lost", REBOOT),
    "gsp": Row(stands(119), "held", "driver-unresponsive", REBOOT),
    "nvlink": Row(dies(74, cause="worker-died"), "held", "nvlink-fault", RESET),
    "switch": Row(switch, "held", "nvlink-fault", RESET, 2),
    "drain": Row(asks_for(4, "Drain and Reset"), "held", "gpu-ecc", "drain and reset"),
    "node": Row(asks_for(2, "Node Reboot Required"), "held", "gpu-ecc", REBOOT),
    "nvml-lost": Row(stands(handle="!15"), "held", "gpu-lost", REBOOT),
    "nvml-reset": Row(stands(power="!16"), "held", "gpu-hardware-suspect", RESET),
    "nvml-action": Row(stands(recovery=1), "held", "gpu-hardware-suspect", RESET),
}


def remap(stage: GpuStage, name: str) -> None:
    stage.xid(name, 63)
    stage[name].shows({"rows": "0,1,1,0"})


# Reported, and the engine works on: nothing is done to it. The second word is what the journal says, where it does.
WORKING: dict[str, tuple[Callable[[GpuStage, str], None], str]] = {
    "remapped": (remap, ""),
    "works-on": (lambda stage, name: stage.xid(name, 79), "fallen off the bus"),
    "reset-due": (lambda stage, name: stage[name].shows({"recovery": 1}), "asks for: GPU reset"),
    "foreign": (lambda stage, name: stage.kernel(
        f"NVRM: Xid (PCI:{stage.address(name)}): 31, pid=1, name=python3, MMU Fault"), ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def stage() -> Iterator[GpuStage]:
    rigs = [Rig(name, row.cards) for name, row in ROWS.items()]
    with gpus(*rigs, *map(Rig, WORKING), settings=PATIENT.replace('"50ms"', f'"{PAUSE}s"')) as made:
        for name in WORKING:
            made[name].works()
        made.begin()
        for name, (happens, _) in WORKING.items():
            happens(made, name)
        for name in ROWS:
            made.manager(unit(name), "Consumed 3min 4s CPU time.")
        made.manager("llm-gateway.service", "Reloaded llm-gateway.service.")
        late(made, "late")  # first: it waits, and its line counts for seconds only
        for name, row in ROWS.items():
            if row.happens is not late:
                row.happens(made, name)
        yield made


@pytest.mark.parametrize("name", ROWS)
def test_what_becomes_of_the_engine(stage: GpuStage, name: str) -> None:
    row = ROWS[name]

    def judged() -> list[Incident]:
        return [one for one in stage.incidents(name) if one.cause == row.cause]

    first = stage.wait(judged, f"{name} is judged", LIMIT)[0]
    if row.state == "held":
        held = stage.wait_state("held", name)
        assert held["cause"] == row.cause and row.words in held["reason"], held
        assert stage.starts(name) == 0
        assert stage.rigs[name].processes == []
    else:
        stage.wait(
            lambda: stage.starts(name) == 1 and stage.fleet(name)["state"] == "serving", f"{name} is restarted", LIMIT
        )
        assert row.words in first.reason and RESET not in first.reason


def test_the_recording_of_an_engine_has_no_lines_of_other_units(stage: GpuStage) -> None:
    stage.wait(lambda: any(one.collected for one in stage.incidents("ecc")), "its evidence is kept")
    units = {line.get("unit", "") for line in stage.timeline("ecc") if line.get("src") == "systemd"}
    assert units == {unit("ecc")}


@pytest.mark.parametrize("name", WORKING)
def test_an_engine_that_works_on_is_left_alone(stage: GpuStage, name: str) -> None:
    words = WORKING[name][1]
    if words:
        told = stage.wait(lambda: [line for line in stage.lines(name) if words in line], "it is told")
        assert "the engine works on, but" in told[0] and len(told) == 1
    assert stage.untouched(name) and stage.incidents(name) == []
    assert stage.fleet(name)["state"] == "serving"


def test_how_far_up_its_ladder_a_gpu_is_outlives_the_supervisor(stage: GpuStage) -> None:
    for name, step in (("uncontained", 2), ("gsp", 3), ("lost", 3)):  # killed, killed, dead by itself
        stage.wait_state("held", name)
        (kept,) = stage.ledger(name)["gpu_steps"]
        assert (kept["pci"], kept["step"]) == (stage.address(name), step)


def test_rows_that_are_remapped_at_the_next_reset_are_shown(stage: GpuStage) -> None:
    told = stage.wait(lambda: [line for line in stage.lines("remapped") if "remaps rows" in line], "it is told")
    assert len(told) == 1 and "at its next reset" in told[0]
    shown = [gpu for gpu in stage.gpus()["gpus"] if gpu["pci"] == stage.address("remapped")]
    assert shown[0]["remapped_rows"] == [0, 1, True, False]
