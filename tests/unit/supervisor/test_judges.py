"""What a judge is told, by whom when some fall silent, and what a recording keeps of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from appliance import clock
from appliance.cli.replay import replayed
from appliance.config.model import Config, Engine, Hang, Supervisor
from appliance.host.journal import Journal
from appliance.host.places import Places
from appliance.policy.hang import FIRST_REQUEST
from appliance.policy.hardware import Step
from appliance.policy.ladder import Facts, Place
from appliance.policy.reconcile import Seen, UnitState
from appliance.samples import Canary, Gpu, Ledger, Milestone, Nvml, Sample
from appliance.supervisor.judges import Judges
from appliance.wire import timeline

CONFIG = Config(engines=(Engine(name="chat", model="m/x", gpus=("GPU-a",)),))
SERVING = Seen(UnitState.UP, "r1", phase="serving", facts=Facts(place=Place("d", "0.32.0-cuda", ("GPU-a",)), cuda=True))
CARDS = (Gpu(uuid="GPU-b", pci="0000:17:00"), Gpu(uuid="GPU-a", pci="0000:65:00"))


class Telemetry:
    """What was seen, as far as a test says so; a reading of the GPUs and nothing else at first."""

    def __init__(self) -> None:
        self.nvml: Nvml | None = None
        self.late_s = 0.0
        self.kept: list[Sample] = []

    def add(self, instance: str, sample: Sample) -> None:
        self.kept.append(sample)

    def after(self, instance: str, place: tuple[int, int, int]) -> tuple[list[Sample], tuple[int, int, int]]:
        return self.kept[place[0] :], (len(self.kept), 0, 0)

    def samples(self, instance: str) -> list[Sample]:
        return list(self.kept)


def made(directory: Path) -> tuple[Judges, Telemetry]:
    telemetry: Any = Telemetry()
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


def silent(judges: Telemetry, **limits: float) -> Config:
    """An engine that has a call and tells nothing for 20 s, as looks a second apart saw it, the last one 0.5 s ago."""
    now = clock.monotonic()
    judges.kept = [Milestone(t=now - 40.5, phase="serving", start="r1")]
    for second in range(20, -1, -1):
        since = 20.0 - second
        judges.kept.append(Ledger(t=now - 0.5 - second, inflight=1, oldest_silent_s=since, since_any_byte_s=since))
    return replace(CONFIG, supervisor=Supervisor(interval=1.0, hang=replace(Hang(), **limits)))


def judged_again(judges: Judges, config: Config) -> list[tuple[str, str]]:
    """What a replay of the recording of now finds last."""
    lines = [json.dumps(record).encode() + b"\n" for record in judges.timeline("chat")]
    recording = timeline.read(iter(lines), "timeline.jsonl")
    found = list(replayed(recording.samples, recording.setting, config.supervisor))
    return [(each.verdict, each.cause) for each in found]


def test_a_hang_that_became_certain_between_two_looks_is_in_its_recording(tmp_path: Path) -> None:
    judges, telemetry = made(tmp_path)
    config = silent(telemetry, suspect=5.0, confirm_blind=20.25 / FIRST_REQUEST)
    judges.look(config, {"chat": SERVING})
    ((_, found),) = judges.hanging()
    assert found.verdict == "hung"
    assert judged_again(judges, config)[-1] == ("hung", found.cause)
    judges.close()


def test_a_call_of_our_own_is_in_the_recording(tmp_path: Path) -> None:
    """It is demand: who replays must see what the judge saw."""

    async def asked() -> None:
        judges, telemetry = made(tmp_path)
        now = clock.monotonic()
        telemetry.kept = [Milestone(t=now - 40.0, phase="serving", start="r1")]
        telemetry.kept += [Ledger(t=now - second, inflight=0) for second in range(30, 0, -1)]
        config = replace(CONFIG, supervisor=Supervisor(interval=1.0, hang=replace(Hang(), canary_after=10.0)))
        judges.look(config, {"chat": SERVING})
        assert [each.outstanding for each in telemetry.kept if isinstance(each, Canary)] == [True]

        async def answered() -> None:
            while len(told := [each for each in telemetry.kept if isinstance(each, Canary)]) < 2:
                await asyncio.sleep(0.01)
                judges.look(config, {"chat": SERVING})
            assert not told[1].outstanding

        await asyncio.wait_for(answered(), 20.0)
        recorded = [record for record in judges.timeline("chat") if record.get("src") == "canary"]
        assert [record["outstanding"] for record in recorded] == [True, False]
        judges.close()

    asyncio.run(asked())
