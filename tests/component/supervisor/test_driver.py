"""A driver that fails as a whole: no engine that serves is touched for it, and everybody is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gpustage import SPIN, GpuStage, Rig, gpus

pytestmark = pytest.mark.slow


@pytest.fixture
def stage() -> Iterator[GpuStage]:
    with gpus(Rig("works"), Rig("stands"), Rig("last")) as made:
        made["works"].works()
        yield made


def told(stage: GpuStage, name: str, words: str) -> None:
    """The journal says once what is the matter, and that the engine works on."""
    lines = stage.wait(lambda: [line for line in stage.lines(name) if words in line], f"{name}: {words}")
    assert len(lines) == 1 and "the engine works on, but" in lines[0]


def test_fewer_gpus_than_before_and_then_no_answer_at_all(stage: GpuStage) -> None:
    stage.begin()
    stage.driver = "gpus=2"
    told(stage, "last", f"GPU {stage.address('last')} is not there any more")
    assert len(stage.gpus()["gpus"]) == 2
    assert stage.untouched("last") and stage.fleet("last")["state"] == "serving"
    stage.driver = "gpus=..."  # whoever asks is kept for ever
    stage.wait(lambda: "no answer from NVML" in str(stage.gpus().get("error")), "what `status` shows says so")
    told(stage, "works", "NVML does not answer")
    stage["stands"].stands_still(running=1)
    stage["stands"].shows(SPIN)
    held = stage.wait_state("held", "stands")
    assert held["cause"] == "driver-unresponsive" and "reboot the machine" in held["reason"]
    assert stage.starts("stands") == 0
    for name in ("works", "last"):
        assert stage.untouched(name) and stage.fleet(name)["state"] == "serving" and not stage.incidents(name)
    stage.ask("drain", engine="last")  # the supervisor goes on
    stage.wait_state("draining", "last")
    assert all(gpu["util"] is None and gpu["name"] for gpu in stage.gpus()["gpus"])


def test_a_driver_of_another_version_stops_no_engine_and_is_why_none_starts(stage: GpuStage) -> None:
    stage.driver = "init=!18"
    stage.start()
    told(stage, "works", "the driver in the kernel and its library differ in version")
    assert stage.gpus()["code"] == 18
    stage.dies("stands", "start-failed", "Failed to infer device type", status=72, phase="starting")
    held = stage.wait_state("held", "stands")
    assert held["cause"] == "driver-mismatch" and "reboot the machine" in held["reason"]
    assert stage.starts("stands") == 0
    for name in ("works", "last"):
        assert stage.untouched(name) and stage.fleet(name)["state"] == "serving" and not stage.incidents(name)
