"""The benchmark's own tools: what they count is what happened, and a wrong token does not pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import proctree, programs, session
from tests.bench.engine import Engine
from tests.bench.gateway import gateway, write_keys
from tests.bench.load import Load, faults, load
from tests.bench.proxies import Proxy, direct, scratch
from tests.bench.scenarios import NGINX, ROUTER, Row, Scenario, unit_nice
from tests.support import provisions
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as made:
        yield made


@pytest.fixture(scope="module")
def proxy(engine: Engine) -> Iterator[Proxy]:
    """Our gateway, with everything switched on."""
    with scratch() as directory, gateway(engine.ports, directory, write_keys(directory, 3)) as made:
        yield made


@pytest.fixture(autouse=True)
def calm(engine: Engine) -> None:
    engine.pace(1, 1)
    engine.misbehave("none", 0)
    engine.reset()


@pytest.mark.slow
def test_the_compiler_has_nothing_to_say(tmp_path: Path) -> None:
    programs.compile_all(tmp_path, "-Werror")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("none", {}),
        ("lose", {"missing": 4}),
        ("double", {"doubled": 4}),
        ("swap", {"reordered": 4}),
        ("alter", {"wrong": 4, "missing": 4}),
        ("cut", {"reset": 4, "missing": 28, "unended": 4}),
    ],
)
def test_each_wrong_token_is_found_behind_the_gateway(
    engine: Engine, proxy: Proxy, fault: str, found: dict[str, int]
) -> None:
    engine.misbehave(fault, 3)
    report = load(proxy.port, proxy.keys, clients=4, tokens=10)
    if fault == "cut":  # the gateway tells the client in the stream before it ends the connection
        assert report["unasked"] == 4 and report["unended"] == 4 and report["missing"] >= 28
    else:
        assert faults(report) == found
    engine.misbehave(fault, 3)
    assert faults(load(engine.ports[0], clients=4, tokens=10)) == found


def test_a_run_through_the_gateway_is_counted(engine: Engine, proxy: Proxy) -> None:
    """All that was asked is answered once; usage that nobody asked for is not seen; the time of the gateway is."""
    row = Row(1, "gateway", "tiny")
    Scenario("tiny", "", {"first_ms": 5, "gap_ms": 2}, {"clients": 8, "requests": 24, "tokens": 10}).run(
        proxy, engine, row
    )
    assert (row.load["right"], row.load["tokens"], faults(row.load)) == (24, 240, {})
    assert (row.engine["requests"], row.engine["tokens"], row.engine["most_active"]) == (24, 240, 8)
    assert 0.001 < row.cpu < 10 and row.resident > 10 << 20
    assert 4000 < row.load["first_us"]["p50"] < 5_000_000
    assert row.load["transit_us"]["count"] == 240


def test_metrics_count_on_when_the_counters_are_set_to_zero(engine: Engine) -> None:
    """Else the gateway would take the engine for started again, and forget how much it can do at once."""
    load(engine.ports[0], clients=2, tokens=5)
    engine.reset()
    with urllib.request.urlopen(f"http://127.0.0.1:{engine.ports[0]}/metrics", timeout=10) as page:
        made = [line for line in page.read().decode().splitlines() if line.startswith("vllm:generation_tokens_total")]
    assert engine.stats()["tokens"] == 0
    assert float(made[0].split()[-1]) >= 10


def test_answers_without_a_stream_and_long_prompts_are_checked_too(engine: Engine, proxy: Proxy) -> None:
    engine.pace()
    report = load(proxy.port, proxy.keys, clients=4, requests=8, tokens=7, stream=0, prompt=300_000)
    assert (report["right"], report["tokens"], faults(report)) == (8, 56, {})


def test_usage_that_is_asked_for_comes(proxy: Proxy) -> None:
    report = load(proxy.port, proxy.keys, clients=2, tokens=3, usage=1)
    assert (report["right"], faults(report)) == (2, {})


def test_a_refused_key_is_a_fault(proxy: Proxy, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-unknown\n")
    report = load(proxy.port, keys, clients=2, tokens=3)
    assert (report["statuses"], faults(report)) == ({"401": 2}, {"refused": 2})


def test_clients_that_leave_are_counted_with_their_tokens(engine: Engine, proxy: Proxy) -> None:
    engine.pace(5, 20)
    assert load(proxy.port, proxy.keys, clients=6, tokens=100, leave_after=2)["left"] == 6
    wait_until(lambda: engine.stats()["active"] == 0, 5, "the engine works for nobody", 0.02)
    seen = engine.stats()
    assert (seen["left"], seen["completed"]) == (6, 0)
    assert 2 <= seen["left_tokens_p50"] <= seen["left_tokens_max"] < 50


def test_an_open_loop_counts_from_the_moment_that_was_due(engine: Engine) -> None:
    """With one client for all, each request waits for those before it: the wait is part of its time."""
    engine.pace(11)
    report = load(engine.ports[0], clients=1, rate=100, seconds=1, tokens=1)
    assert report["requests"] == 100
    assert report["first_us"]["max"] > 80_000


def test_connections_are_held_until_the_load_is_ended(engine: Engine) -> None:
    with Load(engine.ports[0], clients=50, tokens=1, hold=1) as held:
        assert held.report()["connections"] == 50
        assert held.running()
    assert not held.running()


def test_a_proxy_that_is_not_here_leaves_rows_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise RuntimeError("no matching distribution")

    monkeypatch.setattr(provisions, "vllm_router", missing)
    rows = list(session.through(ROUTER, 1, [Scenario(name, "", {}, {}) for name in ("one", "other")]))
    assert [(row.scenario, row.here, row.error) for row in rows] == [
        (name, False, "no matching distribution") for name in ("one", "other")
    ]


def test_a_scenario_that_fails_leaves_the_rest_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(session.STARTS, NGINX, direct)
    rows = list(session.through(NGINX, 1, [Scenario(name, "", {}, {"nonsense": 1}) for name in ("one", "other")]))
    assert [(row.scenario, row.here) for row in rows] == [("one", True), ("other", True)]
    assert all("the load ended with 2" in row.error for row in rows)


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "packaging", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.bench", "streams", "--repetitions", "1"]
    with subprocess.Popen(command, cwd=provisions.ROOT, env=environment, stdout=-1, stderr=-1, text=True) as process:
        wait_until(lambda: len(proctree.family(process.pid)) == 3, 30, "engine and load run", 0.02)
        below = proctree.family(process.pid)[1:]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and said.rstrip().endswith("stopped")
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.iterdir())


def test_a_process_has_another_niceness_for_a_while() -> None:
    with subprocess.Popen(["sleep", "30"]) as process:
        try:
            with proctree.niced([process.pid], 3):
                assert os.getpriority(os.PRIO_PROCESS, process.pid) == 3
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == 0
        finally:
            process.kill()


def test_the_gateways_niceness_is_its_units() -> None:
    assert unit_nice() < 0
