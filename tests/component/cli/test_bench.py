"""`llm-appliance bench` as a process, against engines whose times are known, and through a real gateway."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config import source
from tests.support.command import call
from tests.support.fakeengine import parse_fault
from tests.support.fakewire.answer import PROMPT_TOKENS
from tests.support.gatewayprocess import ROOT, FakeEngine, Gateway
from tests.support.stage import Stage
from tests.support.waiting import wait_until

QUICK = ("--input-tokens", str(PROMPT_TOKENS), "--chat")


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine(tokens=8)
    yield made
    made.close()


def measured(still: Stage, engine: FakeEngine, *words: str) -> dict[str, Any]:
    done = call(still, "bench", "--url", engine.url, *QUICK, "--output-tokens", "8", "--json", *words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
def test_figures_are_the_engines_own_times(still: Stage, engine: FakeEngine) -> None:
    """First tokens after 800 ms, others every 200 ms: within 5 %, as soon as the machine lets the engine keep them."""
    engine.engine.fault = {"first": 0.8}
    engine.engine.gap = gap = 0.2  # what a busy machine adds to each is little beside it
    known = {"ttft": 0.8, "itl": gap, "tpot": gap, "e2el": 0.8 + 7 * gap}

    def close() -> dict[str, Any] | None:
        step = measured(still, engine, "--concurrency", "4", "--requests", "8", "--target-ttft", "1s")["steps"][0]
        assert (step["completed"], step["output_tokens"], step["failed"], step["estimated"]) == (8, 64, 0, 0)
        rate = 8 * 8 / (2 * (known["e2el"] + 2 * gap))  # two events more: usage and [DONE]
        near = abs(step["output_tokens_per_s"] / rate - 1) < 0.05
        near = near and all(abs(step[name]["p50"] / value - 1) < 0.05 for name, value in known.items())
        return step if near else None

    step = wait_until(close, 25, "figures within 5 % of the engine's")
    assert step is not None and step["goodput"] == pytest.approx(step["requests_per_s"], rel=0.3)


def test_a_ladder_doubles_and_is_drawn(still: Stage, engine: FakeEngine, tmp_path: Path) -> None:
    picture = tmp_path / "ladder.svg"
    done = call(still, "bench", "--url", engine.url, *QUICK, "--output-tokens", "8", "--concurrency", "1,2",
                "--requests", "4", "--plot", str(picture))  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("smollm2-135m at 127.0.0.1:") and "7 tokens in, 8 out" in lines[0]
    assert lines[1].split()[:3] == ["N", "REQ/S", "TOK/S"]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]
    assert picture.read_text().startswith("<svg")
    assert max(map(len, lines[1:4])) <= 80
    asked = [entry for entry in engine.log if entry["path"] == "/v1/chat/completions"]
    assert len(asked) == 1 + 1 + (1 + 4) + (2 + 4)  # the length, the first token, and each step with its warm-up
    assert all(entry["stream_options"] == {"include_usage": True} for entry in asked)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("error=3", "InternalServerError"), ("reset=3", "broken off"), ("tokens=0", "no token")],
)
def test_failures_are_counted_by_kind(still: Stage, engine: FakeEngine, fault: str, kind: str) -> None:
    """What fails when the ladder is under way: the engine breaks with the second step's first counted request."""
    done = broken_on_the_way(still, engine, fault)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    step = told["steps"][-1]
    assert (step["completed"], step["ttft"], list(step["failures"])) == (0, None, [kind])
    assert told["stopped"] == "no request was answered with 2 at once"
    assert "2 at once: 2 of 2 requests failed" in " ".join(told["notes"])


def broken_on_the_way(still: Stage, engine: FakeEngine, fault: str) -> subprocess.CompletedProcess[str]:
    engine.engine.fault = parse_fault(f"from=8,{fault}")  # after 2 + (1 + 2) and the two that warm up
    return call(still, "bench", "--url", engine.url, *QUICK, "--output-tokens", "8", "--json", "--concurrency", "1,2,4",
                "--requests", "2")  # fmt: skip


def test_ctrl_c_prints_what_was_measured_and_aborts_the_rest(still: Stage, engine: FakeEngine) -> None:
    engine.engine.fault = parse_fault("from=10,stall=2")  # after 2 + (1 + 4) and the two that warm the second step up
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "--config", str(still.config), "bench", "--url", engine.url, *QUICK,
         "--output-tokens", "8", "--concurrency", "1,2", "--requests", "4"],
        env=still.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: len(engine.log) == 11 and engine.engine.running == 2, 20, "two requests that hang", 0.02)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, errors
    assert out.splitlines()[2].split()[0] == "1"
    wait_until(lambda: engine.engine.running == 0, 10, "the engine's work to end")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("fault", "words", "status", "said"),
    [
        ("status=400", (), 1, "answers 400 BadRequestError: scripted status 400"),
        ("status=503", (), 3, "answers 503"),
        ("refuse", (), 3, "does not answer: closed without an answer"),
        ("", ("--model", "nope"), 2, "'nope' is not served"),
        ("", ("--concurrency", "0"), 2, "is no list of numbers"),
        ("", ("--target-ttft", "soon"), 2, "--target-ttft: 'soon' is not a duration"),
        ("", ("--shared-prefix", "9"), 2, "between 0 and --input-tokens"),
        ("", ("--plot", "x.gif"), 2, "a .svg or a .png file"),
        ("", ("--tune",), 2, "without --url"),
        ("", ("--key-file", "/none"), 2, "/none: No such file"),
        ("", ("--key-file", "/none", "--key", "sk-x"), 2, "not allowed with argument --key-file"),
    ],
)
def test_what_cannot_be_measured_ends_before_the_ladder(
    still: Stage, engine: FakeEngine, fault: str, words: tuple[str, ...], status: int, said: str
) -> None:
    engine.engine.fault = parse_fault(fault)
    done = call(still, "bench", "--url", engine.url, *QUICK, *words)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert len(engine.log) <= 3 and done.stdout == ""


@pytest.mark.parametrize("fault", ["status=401", "status=503", "refuse"])
def test_an_endpoint_elsewhere_is_not_explained_by_what_is_here(still: Stage, engine: FakeEngine, fault: str) -> None:
    engine.engine.fault = parse_fault(fault)
    done = call(still, "bench", "--url", engine.url, *QUICK, LLM_APPLIANCE_API_KEY="sk-x")
    assert done.returncode in (1, 3) and "hint:" not in done.stderr


def test_nobody_there(still: Stage) -> None:
    done = call(still, "bench", "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        3, "llm-appliance: http://127.0.0.1:9 does not answer: connection refused")  # fmt: skip


# --- through the gateway ----------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Gateway, FakeEngine]]:
    """A gateway with one engine of this machine."""
    run = tmp_path / "gateway" / "run" / "engines" / "chat"
    run.mkdir(parents=True)
    engine = FakeEngine(uds=run / "vllm.sock", tokens=8)
    config = (
        '[gateway]\nlisten = ["127.0.0.1:0"]\nadmin_listen = "127.0.0.1:0"\nadmission.max_in_flight = 2\n'
        "[auth]\nrequired = false\n"
        '[audit]\nenabled = false\n[[engine]]\nname = "chat"\nserved_names = ["smollm2-135m"]\ngpus = []\n'
    )
    gateway = Gateway(tmp_path / "gateway", config)
    try:
        gateway.engine_state("chat", "serving", ready=1.0)
        gateway.config_file.write_text(config.replace("127.0.0.1:0", f"127.0.0.1:{gateway.port}", 1))
        wait_until(lambda: gateway.request("GET", "/readyz").status == 200, 15, "the engine to serve", 0.05)
        yield gateway, engine
    finally:
        gateway.stop()
        engine.close()


def tune(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "appliance", "bench", "--config", str(gateway.config_file), *QUICK, "--output-tokens",
         "8", "--tune", *words],
        env=gateway.environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_tune_writes_what_was_measured(served: tuple[Gateway, FakeEngine]) -> None:
    """Two may be at work at once, 200 ms each: with four at once half of the first tokens come too late."""
    gateway, engine = served
    engine.engine.gap = 0.02
    dropin = gateway.directory / "config.d" / "90-bench.toml"
    ladder = ("--requests", "8", "--concurrency", "2,4", "--target-ttft", "150ms")
    done = tune(gateway, *ladder, "--yes")
    assert done.returncode == 0, done.stderr
    assert "llm-appliance apply" in done.stdout
    text = dropin.read_text()
    assert 'name = "chat"' in text and "max_num_seqs = 2" in text
    checked = source.load(str(gateway.config_file)).config
    assert checked is not None and checked.engines[0].vllm == {"max_num_seqs": 2}
    assert checked.engines[0].name == "chat" and len(checked.engines) == 1


@pytest.mark.slow
def test_tune_asks_and_where_nobody_answers_writes_nothing(served: tuple[Gateway, FakeEngine]) -> None:
    gateway, _ = served
    done = tune(gateway, "--requests", "1", "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert "queue_size = " in done.stdout and "--concurrency" in done.stdout  # the last step was the best
    assert "not written" in done.stderr
    assert not (gateway.directory / "config.d").exists()


@pytest.mark.slow
def test_limits_of_the_gateway_are_told_apart_from_the_engine(served: tuple[Gateway, FakeEngine]) -> None:
    """Two at work and none may wait: the third is refused, and the figures say so."""
    gateway, engine = served
    engine.engine.gap = 0.01
    text = gateway.config_file.read_text()
    gateway.config_file.write_text(text.replace("max_in_flight = 2", "max_in_flight = 2\nadmission.queue_size = 0"))
    gateway.reload()
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "bench", "--config", str(gateway.config_file), *QUICK, "--output-tokens",
         "8", "--requests", "12", "--concurrency", "6"],
        env=gateway.environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "429 queue_full" in done.stdout
    assert "measure the limit and not the engine" in done.stdout
