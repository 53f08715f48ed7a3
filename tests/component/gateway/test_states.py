"""What clients, readiness and status tell while engines start, serve, restart, are held, or cannot be known."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gatewayprocess import FakeEngine, Gateway, chat, config
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
LOCAL = '[[engine]]\nname = "chat"\nmodel = "builtin:smollm2-135m"\n'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("states"), config(LOCAL))
    yield made
    made.kill()


@pytest.fixture
def local(shared: Gateway) -> Iterator[Gateway]:
    """A gateway for one engine on this machine, of which nothing is known yet."""
    yield shared
    for name in ("engines", "supervisor", "runtime"):
        shutil.rmtree(shared.run / name, ignore_errors=True)

    def forgotten() -> bool:
        status = shared.admin("/status")
        return status["runtime"] is None and status["supervisor"] is None and status["state"] == "starting"

    wait_until(forgotten, 3, "nothing is known", 0.05)


def refusal(gateway: Gateway, code: str, words: str) -> float:
    """Wait for a 503 of that code with those words; its Retry-After."""

    def told() -> float | None:
        answer = gateway.request("POST", CHAT, chat())
        if answer.status != 503 or answer.code != code or words not in answer.json["error"]["message"]:
            return None
        assert gateway.request("GET", "/readyz").status == 503
        return float(answer.headers["retry-after"])

    return wait_until(told, 5, f"{code}: {words}", 0.05) or 0.0


def test_the_way_to_serving_is_told_truthfully(local: Gateway, tmp_path: Path) -> None:
    from appliance.host.files import replace_json

    assert 10 <= refusal(local, "engine_starting", "has not been started") <= 12
    runtime = local.run / "runtime"
    runtime.mkdir()
    told = {"phase": "downloading", "message": "torch, 1.2 of 3.1 GB", "percent": 41.0, "since": time.time()}
    replace_json(runtime / "state.json", {**told, "version": "0.32.0", "device": "cpu", "models": {}})
    assert 30 <= refusal(local, "engine_starting", "torch, 1.2 of 3.1 GB (41 %)") <= 35
    local.engine_state("chat", "loading", message="shard 2 of 5")
    assert 10 <= refusal(local, "engine_starting", "shard 2 of 5") <= 12
    local.fleet(chat={"state": "starting", "since": time.time(), "load_s": 40.0, "reason": "", "cause": None})
    wait = wait_until(lambda: (r := refusal(local, "engine_starting", "weights")) > 12 and r, 5, "load time", 0.05)
    assert 30 <= float(wait) <= 46
    assert local.request("GET", "/v1/models").json["data"][0]["id"] == "smollm2-135m"
    status = local.admin("/status")
    assert status["state"] == "starting" and status["versions"]["vllm"] == "0.32.0"
    assert status["engines"][0]["replicas"][0]["phase"] == "loading"


def test_an_appliance_that_was_told_to_drain_does_not_start(local: Gateway) -> None:
    local.fleet(chat={"state": "draining", "since": time.time(), "load_s": None, "reason": "new fan", "cause": None})
    wait_until(lambda: local.admin("/status")["state"] == "draining", 5, "the state is told", 0.05)


@pytest.fixture
def socketed(local: Gateway) -> Iterator[tuple[Gateway, FakeEngine]]:
    directory = local.run / "engines" / "chat"
    directory.mkdir(parents=True)
    engine = FakeEngine(uds=directory / "vllm.sock")
    yield local, engine
    engine.close()


def test_an_engine_on_its_socket_serves_only_when_it_says_so(socketed: tuple[Gateway, FakeEngine]) -> None:
    gateway, _ = socketed
    gateway.engine_state("chat", "warming")
    refusal(gateway, "engine_starting", "first test request")
    gateway.engine_state("chat", "serving", ready=time.time())
    wait_until(lambda: gateway.request("GET", "/readyz").status == 200, 3, "it is ready", 0.05)
    answer = gateway.request("POST", CHAT, chat(stream=True))
    assert answer.status == 200 and answer.headers["x-engine"] == "chat"
    assert gateway.admin("/status")["state"] == "serving"

    gateway.fleet(chat={"state": "held", "reason": "the operator asked for it"})
    assert refusal(gateway, "engine_held", "the operator asked for it") > 120
    held = gateway.request("POST", CHAT, chat())
    assert held.headers["x-should-retry"] == "false"
    gateway.fleet(chat={"state": "restarting", "reason": "it ran out of GPU memory", "load_s": 25})
    gateway.engine_state("chat", "exited")
    assert refusal(gateway, "engine_restarting", "it ran out of GPU memory") in range(25, 30)


def test_a_socket_that_is_gone_is_a_restart(socketed: tuple[Gateway, FakeEngine]) -> None:
    gateway, engine = socketed
    gateway.engine_state("chat", "serving")
    wait_until(lambda: gateway.request("POST", CHAT, chat()).status == 200, 3, "it serves", 0.05)
    engine.down()
    for _ in range(2):
        answer = gateway.request("POST", CHAT, chat("[[fault:refuse]]"))
    assert (answer.status, answer.code) == (503, "engine_restarting")
    engine.up()
    wait_until(lambda: gateway.request("POST", CHAT, chat()).status == 200, 5, "it serves again", 0.05)


def test_the_ledger_tells_of_silence(socketed: tuple[Gateway, FakeEngine]) -> None:
    gateway, _ = socketed
    gateway.engine_state("chat", "serving")
    wait_until(lambda: gateway.request("GET", "/readyz").status == 200, 3, "it is ready", 0.05)
    quiet = gateway.control("/ledger")["engines"]["chat"]
    assert quiet["inflight"] == 0 and quiet["oldest_silent_s"] is None
    assert quiet["structured"] == quiet["largest_prompt_tokens"] == 0
    with gateway.open("POST", CHAT, chat("[[fault:stall=3,comments=0.05]]", stream=True)) as stream:
        stream.read(10)

        def silent() -> bool:
            entry = gateway.control("/ledger")["engines"]["chat"]
            quiet = min(entry["oldest_silent_s"], entry["since_any_byte_s"])
            return bool(entry["inflight"] == 1 and quiet > 0.4)

        wait_until(silent, 5, "comments of the engine are no progress", 0.05)
        begun = gateway.control("/ledger")["engines"]["chat"]
        assert begun["structured"] == begun["largest_prompt_tokens"] == 0
    wait_until(gateway.idle, 3, "nothing runs", 0.05)
    after = gateway.control("/ledger")["engines"]["chat"]
    assert after["inflight"] == 0 and after["since_any_byte_s"] < 5


@pytest.mark.slow
def test_the_ledger_tells_what_open_requests_ask_for(socketed: tuple[Gateway, FakeEngine]) -> None:
    gateway, _ = socketed
    gateway.engine_state("chat", "serving")
    wait_until(lambda: gateway.request("GET", "/readyz").status == 200, 3, "it is ready", 0.05)
    asked = chat("[[fault:head=30]]" + "x" * 4000, stream=True, response_format={"type": "json_object"})
    with gateway.open("POST", CHAT, asked):
        entry = wait_until(
            lambda: (e := gateway.control("/ledger")["engines"]["chat"])["inflight"] == 1 and e, 5, "it runs", 0.05
        )
    assert entry["structured"] == 1
    assert 1000 <= entry["largest_prompt_tokens"] <= 1200


def test_metrics_of_gateway_and_engine(socketed: tuple[Gateway, FakeEngine]) -> None:
    gateway, _ = socketed
    gateway.engine_state("chat", "serving")
    wait_until(lambda: gateway.request("POST", CHAT, chat()).status == 200, 3, "it serves", 0.05)
    text = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
    assert 'llm_appliance_engine_serving{engine="chat"} 1' in text
    assert 'vllm:kv_cache_usage_perc{engine="chat",exported_engine="0",model_name="smollm2-135m"} 0.125' in text
    assert text.count("# TYPE vllm:num_requests_running") == 1
    gateway.engine_state("chat", "exited")
    wait_until(lambda: gateway.request("GET", "/readyz").status == 503, 3, "it is gone", 0.05)
    text = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
    assert "vllm:" not in text and 'llm_appliance_engine_serving{engine="chat"} 0' in text


def test_the_console_is_one_page(local: Gateway) -> None:
    page = local.request("GET", "/", port=local.admin_port)
    assert page.status == 200 and b"<title>llm-appliance</title>" in page.body
    assert local.request("GET", "/healthz", port=local.admin_port).status == 200
    assert local.request("GET", "/readyz", port=local.admin_port).status == 503
    assert local.request("POST", "/status", b"", port=local.admin_port).status == 405
    assert local.request("GET", "/ledger", port=local.admin_port).status == 404


def test_a_suspected_replica_gets_no_new_calls_while_another_serves(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, config(LOCAL + "replicas = 2\n"))
    names = ("chat", "chat-2")
    engines = []
    for name in names:
        (gateway.run / "engines" / name).mkdir(parents=True)
        engines.append(FakeEngine(uds=gateway.run / "engines" / name / "vllm.sock"))
        gateway.engine_state(name, "serving")

    def asked() -> set[str]:
        return {gateway.request("POST", CHAT, chat()).headers.get("x-engine", "") for _ in range(6)}

    try:
        for suspects, takers in (((), set(names)), (("chat",), {"chat-2"}), (names, set(names))):
            gateway.fleet(**{name: {"state": "serving", "suspect": name in suspects} for name in names})
            wait_until(lambda takers=takers: asked() == takers, 10, f"{takers} take calls", 0.05)  # type: ignore[misc]
    finally:
        gateway.kill()
        for engine in engines:
            engine.close()


def test_status_is_as_the_supervisor_shows_it_now(local: Gateway) -> None:
    """Whoever gave an order asks next what became of it."""
    local.engine_state("chat", "serving")
    for state in ("serving", "draining", "serving"):
        local.fleet(chat={"state": state, "since": time.time(), "reason": "", "cause": None})
        assert local.admin("/status")["engines"][0]["replicas"][0]["state"] == state


@pytest.mark.parametrize("hostile", ["pipe", "deep", "number", "text"])
def test_what_an_engine_leaves_for_its_state_stops_nobody_else(tmp_path: Path, hostile: str) -> None:
    """An engine may write there what it likes, and it runs a model's code."""
    two = '[[engine]]\nname = "other"\nmodel = "builtin:minilm-l6-v2"\n'
    gateway = Gateway(tmp_path, config(LOCAL + two))
    for name in ("chat", "other"):
        (gateway.run / "engines" / name).mkdir(parents=True)
    engine = FakeEngine(uds=gateway.run / "engines/chat/vllm.sock")
    file = gateway.run / "engines/other/state.json"
    contents = {
        "deep": '{"v": 1, "x": ' + "[" * 200_000 + "]" * 200_000 + "}",
        "number": '{"v": 1, "phase": "loading", "since": ' + "9" * 400 + "}",
        "text": '{"v": 1, "phase": "loading", "message": "\\ud800", "since": 1}',
    }

    def engine_state() -> object:
        return [each["replicas"][0] for each in gateway.admin("/status")["engines"]][1]

    try:
        gateway.engine_state("chat", "serving")
        gateway.engine_state("other", "loading", message="shard 2")
        gateway.wait_serving("chat")
        wait_until(lambda: "shard 2" in str(engine_state()), 5, "the state is read", 0.05)
        if hostile == "pipe":
            file.unlink()
            os.mkfifo(file)
        else:
            file.write_text(contents[hostile])
        wait_until(lambda: "shard 2" not in str(engine_state()), 5, "nothing is known", 0.05)
        assert gateway.request("POST", CHAT, chat()).status == 200
        assert gateway.request("POST", "/v1/embeddings", {"model": "minilm-l6-v2", "input": "a"}).status == 503
    finally:
        gateway.kill()
        engine.close()
