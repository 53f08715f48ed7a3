"""Only what was measured is proposed, and each setting says why."""

from __future__ import annotations

import pytest

from appliance.config.model import Admission, Config, Engine, Gateway
from appliance.policy.loadfigures import Request, Target, figures
from appliance.policy.loadladder import Best
from appliance.policy.tuning import Setting, derive, dropin


def found(concurrency: int, requests_per_s: float = 4.0, *, open_ended: bool = False) -> Best:
    requests = [Request(ttft=0.1, e2el=1.0, output_tokens=10)] * 40
    return Best(figures(requests, concurrency, 40 / requests_per_s, Target()), "because", open_ended)


def config(engine: Engine, *more: Engine, **admission: object) -> Config:
    gateway = Gateway(admission=Admission(**admission))  # type: ignore[arg-type]
    return Config(gateway=gateway, engines=(engine, *more))


def values(settings: tuple[Setting, ...]) -> dict[str, int]:
    return {one.path: one.value for one in settings}


BATCH, QUEUE, FLIGHT = "engine.vllm.max_num_seqs", "gateway.admission.queue_size", "gateway.admission.max_in_flight"


@pytest.mark.parametrize(
    ("engine", "best", "settings", "said"),
    [
        (Engine(), found(32), {BATCH: 32, QUEUE: 240}, "adapts"),
        (Engine(vllm={"max_num_seqs": 64}), found(32), {BATCH: 32, QUEUE: 240}, ""),
        (Engine(vllm={"max_num_seqs": 32}), found(32), {QUEUE: 240}, "max_num_seqs is 32 already"),
        (Engine(vllm={"max_num_seqs": 16}), found(32), {QUEUE: 240}, "a larger batch was not measured"),
        (Engine(replicas=2), found(32), {BATCH: 16, QUEUE: 240}, ""),
        (Engine(vllm={"max_num_seqs": 32}), found(32, open_ended=True), {QUEUE: 240}, "try max_num_seqs = 64"),
        (Engine(), found(32, open_ended=True), {QUEUE: 240}, "try more at once"),
        (Engine(), found(32, 8.0), {BATCH: 32}, "queue_size stays 512"),
        (Engine(), found(32, 0.01), {BATCH: 32, QUEUE: 16}, ""),
    ],
)
def test_settings_follow_from_the_best_step(engine: Engine, best: Best, settings: dict[str, int], said: str) -> None:
    tuning = derive(config(engine), engine, best)
    assert values(tuning.settings) == settings
    assert said in " ".join(tuning.notes)
    assert all(one.reason for one in tuning.settings)


@pytest.mark.parametrize(("was", "settings"), [(8, {FLIGHT: 32}), (32, {}), (64, {}), ("auto", {})])
def test_a_gateway_that_would_hold_back_is_opened(was: object, settings: dict[str, int]) -> None:
    engine = Engine(vllm={"max_num_seqs": 32})
    tuning = derive(config(engine, max_in_flight=was, queue_size=240), engine, found(32))
    assert values(tuning.settings) == settings


def test_what_holds_for_all_engines_is_left_alone() -> None:
    engine = Engine(name="a")
    tuning = derive(config(engine, Engine(name="b"), max_in_flight=4), engine, found(32))
    assert values(tuning.settings) == {BATCH: 32}
    assert "holds for all engines" in " ".join(tuning.notes)


def test_a_dropin_holds_settings_under_their_reasons() -> None:
    text = dropin((Setting(BATCH, 32, None, "why"), Setting(QUEUE, 240, 512, "so")), "chat", ("written",))
    assert text == (
        "# written\n\n[gateway.admission]\n# so\nqueue_size = 240\n\n"
        '[[engine]]\nname = "chat"\n\n[engine.vllm]\n# why\nmax_num_seqs = 32\n'
    )
