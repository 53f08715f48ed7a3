"""What a judge is told of its engine's place, while those who tell it fall silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from appliance import clock
from appliance.config.model import Config, Engine, Supervisor
from appliance.host.journal import Journal
from appliance.host.places import Places
from appliance.policy.hardware import Step
from appliance.policy.ladder import Facts, Place
from appliance.policy.reconcile import Seen, UnitState
from appliance.samples import Gpu, Nvml, Sample
from appliance.supervisor.judges import Judges

CONFIG = Config(engines=(Engine(name="chat", model="m/x", gpus=("GPU-a",)),))
SERVING = Seen(UnitState.UP, "r1", phase="serving", facts=Facts(place=Place("d", "0.32.0-cuda", ("GPU-a",)), cuda=True))
CARDS = (Gpu(uuid="GPU-b", pci="0000:17:00"), Gpu(uuid="GPU-a", pci="0000:65:00"))


class Silent:
    """Telemetry that has a reading of the GPUs and nothing else."""

    def __init__(self) -> None:
        self.nvml: Nvml | None = None

    def after(self, instance: str, place: tuple[int, int, int]) -> tuple[list[Sample], tuple[int, int, int]]:
        return [], place

    def samples(self, instance: str) -> list[Sample]:
        return []


def made(directory: Path) -> tuple[Judges, Silent]:
    telemetry: Any = Silent()
    return Judges(
        telemetry, Places(run=str(directory / "run"), state=str(directory / "state")), Journal("t")
    ), telemetry


def place_of(judges: Judges) -> tuple[Any, Any]:
    """GPUs and their addresses, as a recording of now would say."""
    told: Any = next(iter(judges.timeline("chat")))
    return told["config"].get("gpus"), told["config"]["engine_gpu_pci"]


def test_a_driver_or_a_launcher_that_falls_silent_changes_nothing_about_an_engines_gpus(tmp_path: Path) -> None:
    """Else its judge would begin anew, and take any GPU's fault for the engine's, just when one failed."""
    judges, telemetry = made(tmp_path)
    telemetry.nvml = Nvml(t=clock.monotonic(), gpus=CARDS)
    judges.look(CONFIG, {"chat": SERVING})
    assert place_of(judges) == (1, ["0000:65:00"])
    telemetry.nvml = Nvml(t=clock.monotonic(), error="GPU is lost", code=15)
    judges.look(CONFIG, {"chat": SERVING})
    assert place_of(judges) == (1, ["0000:65:00"])
    judges.look(CONFIG, {})  # systemd does not answer
    judges.look(CONFIG, {"chat": replace(SERVING, facts=Facts())})
    assert place_of(judges) == (1, ["0000:65:00"])
    judges.look(replace(CONFIG, supervisor=Supervisor(interval=1.0)), {})  # another judge, for the same place
    assert place_of(judges) == (1, ["0000:65:00"])
    judges.close()


def test_a_judge_knows_how_far_up_its_ladder_a_gpu_was(tmp_path: Path) -> None:
    judges, telemetry = made(tmp_path)
    telemetry.nvml = Nvml(t=clock.monotonic(), gpus=CARDS)
    judges.look(CONFIG, {"chat": SERVING}, {"0000:65:00": Step.RESET})
    assert judges.with_evidence("chat", SERVING).evidence.past.steps == {"0000:65:00": Step.RESET}
    assert judges.gpu_fault("chat") is None and judges.gpu_fault("another") is None
    judges.close()


def test_another_start_may_have_another_place(tmp_path: Path) -> None:
    judges, telemetry = made(tmp_path)
    telemetry.nvml = Nvml(t=clock.monotonic(), gpus=CARDS)
    judges.look(CONFIG, {"chat": SERVING})
    moved = replace(SERVING, run="r2", facts=replace(SERVING.facts, place=Place("e", "0.32.0-cuda", ("GPU-b",))))
    judges.look(CONFIG, {"chat": moved})
    assert place_of(judges) == (1, ["0000:17:00"])
    judges.close()
