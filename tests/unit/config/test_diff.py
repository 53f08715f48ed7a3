"""Differences and what they cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config import source
from appliance.config.diff import Change, changes
from appliance.config.model import Config, Engine, Gateway, Hang, Supervisor
from appliance.config.table import ROWS

CORPUS = Path(__file__).resolve().parents[2] / "corpus/config/valid"
FILES = [source.load(str(file)).config for file in sorted(CORPUS.glob("*.toml"))]


@pytest.mark.parametrize("config", FILES)
def test_nothing_differs_from_itself(config: Config) -> None:
    assert changes(config, config) == ()


@pytest.mark.parametrize("old", FILES)
@pytest.mark.parametrize("new", FILES)
def test_a_live_row_never_restarts(old: Config, new: Config) -> None:
    live = {row.path for row in ROWS if row.effect == "live"}
    found = changes(old, new)
    assert (found == ()) == (old == new)
    assert not [change for change in found if change.key in live and change.effect != "live"]
    assert {(c.key, c.engine) for c in changes(new, old)} == {(c.key, c.engine) for c in found}


def test_each_change_has_its_key_and_effect() -> None:
    old = Config(engines=(Engine(name="a", vllm={"max_num_seqs": 1, "seed": 0}), Engine(name="b")))
    new = Config(
        gateway=Gateway(max_body=1),
        supervisor=Supervisor(hang=Hang(confirm=60.0)),
        engines=(Engine(name="c"), Engine(name="a", replicas=2, vllm={"max_num_seqs": 2, "enforce_eager": True})),
    )
    assert changes(old, new) == (
        Change("gateway.max_body", 64 << 20, 1, "reload"),
        Change("supervisor.hang.confirm", 90.0, 60.0, "live"),
        Change("engine", None, Engine(name="c"), "restart", "c"),
        Change("engine.replicas", 1, 2, "live", "a"),
        Change("engine.vllm.max_num_seqs", 1, 2, "restart", "a"),
        Change("engine.vllm.enforce_eager", None, True, "restart", "a"),
        Change("engine.vllm.seed", 0, None, "restart", "a"),
        Change("engine", Engine(name="b"), None, "restart", "b"),
    )


def test_the_order_of_engines_is_no_difference_and_moving_away_is_a_restart() -> None:
    a, b = Engine(name="a"), Engine(name="b")
    assert changes(Config(engines=(a, b)), Config(engines=(b, a))) == ()
    away = replace(a, remote=("http://10.0.0.7:8000",))
    other = replace(a, remote=("http://10.0.0.8:8000",))
    assert [c.effect for c in changes(Config(engines=(a,)), Config(engines=(away,)))] == ["restart"]
    assert [c.effect for c in changes(Config(engines=(away,)), Config(engines=(other,)))] == ["reload"]
