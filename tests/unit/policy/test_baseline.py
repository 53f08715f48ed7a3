from __future__ import annotations

from appliance.policy.baseline import BUSY_READINGS, Baseline
from appliance.quantity import UNKNOWN
from appliance.samples import Gpu, Learned, Usual

BEFORE = Learned(gpus={"": Usual(idle_power_w=50.0, busy_power_w=280.0)}, prefill_rate=9000.0)
PCI = "0000:01:00"


def gpu(power_w: float, util: float = 100.0, mem_util: float = 40.0) -> tuple[Gpu, ...]:
    return (Gpu(pci=PCI, power_w=power_w, util=util, mem_util=mem_util),)


def test_earlier_runs_hold_until_this_one_has_shown_enough() -> None:
    baseline = Baseline(BEFORE)
    for reading in range(BUSY_READINGS):
        assert baseline.usual(PCI).busy_power_w == 280.0
        baseline.learn_busy(gpu(300.0 + reading % 3))
    assert baseline.usual(PCI) == Usual(idle_power_w=50.0, busy_power_w=301.0, busy_mem_util=40.0)


def test_idle_is_learnt_in_five_minutes_from_gpus_that_do_nothing() -> None:
    baseline = Baseline(Learned())
    for _ in range(200):
        baseline.learn_idle(gpu(95.0, util=100.0), 2.0)  # a spin without demand: its clients have given up
    assert baseline.usual(PCI).idle_power_w is UNKNOWN
    for _ in range(149):
        baseline.learn_idle(gpu(55.0, util=0.0), 2.0)
    assert baseline.usual(PCI).idle_power_w is UNKNOWN
    baseline.learn_idle(gpu(55.0, util=0.0), 2.0)
    assert baseline.usual(PCI).idle_power_w == 55.0


def test_a_card_that_tells_nothing_teaches_nothing() -> None:
    baseline = Baseline(Learned())
    for _ in range(1000):
        baseline.learn_busy((Gpu(pci=PCI),))
        baseline.learn_idle((Gpu(pci=PCI),), 2.0)
    assert baseline.usual(PCI) == Usual()


def test_what_was_learnt_is_told_for_the_next_run() -> None:
    baseline = Baseline(BEFORE)
    for _ in range(BUSY_READINGS):
        baseline.learn_busy(gpu(300.0))
    assert baseline.learned() == Learned(
        gpus={**BEFORE.gpus, PCI: Usual(idle_power_w=50.0, busy_power_w=300.0, busy_mem_util=40.0)},
        prefill_rate=9000.0,
    )
