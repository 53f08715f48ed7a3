from __future__ import annotations

import pytest

from appliance.policy.witness import STUCK_READINGS, Witness
from appliance.samples import Proc, Setting


def seen(witness: Witness, *names: str, state: str = "T") -> tuple[str, bool]:
    """What is said of a process that is read under these names, one after the other."""
    for second, name in enumerate(names):
        witness.see_process(Proc(t=second, pid=7, name=name, state=state), second)
    told = witness.testimony(len(names), 1.0)
    return told.stuck, told.stopped


@pytest.mark.parametrize("name", ["VLLM::EngineCor", "VLLM::Worker_TP", "vllm"])
def test_a_process_is_known_by_the_name_that_it_has_now(name: str) -> None:
    """A spawned process is called `python` until it has given itself a name."""
    stuck, stopped = seen(Witness(Setting()), "python", *[name] * STUCK_READINGS)
    assert (stuck, stopped) == (f"{name} (7) is stopped", True)


@pytest.mark.parametrize(
    ("state", "cpu_pct", "turns"),
    [("R", 97.0, True), ("R", 30.0, True), ("S", 97.0, True), ("S", 30.0, False), ("R", 5.0, False)],
)
def test_a_core_that_always_wants_a_cpu_turns_in_a_loop(state: str, cpu_pct: float, turns: bool) -> None:
    """A busy machine gives it less than a whole one."""
    witness = Witness(Setting())
    for second in range(5):
        witness.see_process(Proc(t=second, pid=7, name="VLLM::EngineCor", state=state, cpu_pct=cpu_pct), second)
    assert witness.testimony(5.0, 1.0).busy_core is turns


def test_a_process_of_another_kind_or_one_that_moves_is_no_witness() -> None:
    assert seen(Witness(Setting()), *["python"] * 5) == ("", False)
    assert seen(Witness(Setting()), *["VLLM::EngineCor"] * 5, state="S") == ("", False)
    assert seen(Witness(Setting()), *["VLLM::EngineCor"] * (STUCK_READINGS - 1)) == ("", False)
