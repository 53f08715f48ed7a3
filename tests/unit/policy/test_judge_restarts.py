"""A restart as looks two seconds apart see it: whose end was it that a look finds?"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as some

from appliance.config.model import Supervisor
from appliance.policy.failure import hardware_of
from appliance.policy.judge import Judge
from appliance.samples import Milestone, Proc, Setting, Xid

LOOK_S = 2.0
NEVER = 1e9


@dataclass(frozen=True)
class Life:
    """A process from `born` to `gone`."""

    pid: int
    name: str
    born: float
    gone: float


@dataclass(frozen=True)
class Story:
    """When the old run ends, the new one begins, has its processes, serves, and dies (or does not)."""

    end: float
    begin: float
    spawn: float
    serve: float
    death: float
    told: bool  # the old one's launcher says that it stops

    def state(self, t: float) -> tuple[str, str]:
        if t >= self.begin:
            return ("serving" if self.serve <= min(t, self.death) else "starting"), "two"
        return ("stopping" if t >= self.end and self.told else "serving"), "one"

    @property
    def lives(self) -> tuple[Life, ...]:
        old = [Life(pid, name, 0.0, self.end) for pid, name in ((10, "VLLM::APIServer"), (11, "VLLM::EngineCor"))]
        new = [Life(20, "VLLM::APIServer", self.spawn, self.death), Life(21, "VLLM::EngineCor", self.serve, self.death)]
        return (*old, *(life for life in new if life.born < life.gone))


@some.composite
def stories(draw: some.DrawFn) -> Story:
    def later(than: float, most: float) -> float:
        return than + draw(some.floats(0.0, most))

    end = later(10.0, LOOK_S)
    begin = later(end, 5.0)
    spawn = later(begin, 1.5)
    serve = later(spawn, 20.0) + 0.1
    death = later(spawn, 30.0) + 0.1 if draw(some.booleans()) else NEVER
    return Story(end, begin, spawn, serve, death, draw(some.booleans()))


@settings(max_examples=300, deadline=None)
@given(stories())
def test_a_new_run_is_judged_by_its_own_end_alone(story: Story) -> None:
    judge = Judge(Setting(engine="chat", gpus=0), Supervisor())
    before: dict[int, Life] = {}
    last, seen, verdicts = ("", ""), False, set()
    for look in range(50):
        t = look * LOOK_S
        if (state := story.state(t)) != last:
            judge.feed(Milestone(t=t, phase=state[0], start=state[1]))
            last = state
        now = {life.pid: life for life in story.lives if life.born <= t < life.gone}
        for life in now.values():
            judge.feed(Proc(t=t, pid=life.pid, ppid=life.pid // 10 * 10, name=life.name, state="S"))
        for life in (before[pid] for pid in before.keys() - now.keys()):
            judge.feed(Proc(t=t, pid=life.pid, ppid=life.pid // 10 * 10, name=life.name, event="exit"))
        before, seen = now, seen or 20 in now
        if state[1] == "two":
            verdicts.add(judge.judged(t).verdict)
    died = seen and story.death < NEVER
    assert ("failed" in verdicts) == died, verdicts


def test_an_end_that_was_judged_is_not_one_that_came_before_it() -> None:
    """Who is slow asks for its evidence after that; the next run's end of the same kind goes one step up."""
    judge, card = Judge(Setting(gpus=1, engine_gpu_pci=("0000:17:00",)), Supervisor()), "0000:17:00"

    def told(run: str, begin: float) -> str:
        """What is asked after the end of a run was judged."""
        judge.feed(Milestone(t=begin, phase="starting", start=run))
        judge.feed(Milestone(t=begin + 10.0, phase="serving", start=run))
        judge.feed(Xid(t=begin + 20.0, number=74, pci=card))
        judge.feed(Milestone(t=begin + 20.5, phase="exited", start=run))
        judge.feed(Proc(t=begin + 40.0, pid=1, name="another"))  # no more can come that tells of the end
        assert judge.judged(begin + 60.0).cause == "nvlink-fault"
        failure = hardware_of(judge.ending.evidence(begin + 20.5, begin + 60.0))
        assert failure is not None
        return failure.reason

    assert "--gpu-reset" in told("a", 0.0)
    assert "not for the first time" in told("b", 100.0)
