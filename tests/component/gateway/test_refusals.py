"""Every row of the status table, and what a refused client is told."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.host import keystore
from tests.component.gateway.conftest import QUICK, Start
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, chat, config, fault, remote
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b'{"model": NaN}', "invalid_json"),
        (b'{"model": "\xff"}', "invalid_json"),
        ('{"model": "smollm2-135m"}'.encode("utf-16"), "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"n": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b"[1]", "invalid_request"),
        (b"null", "invalid_request"),
        (b"{}", "invalid_request"),
        (b'{"model": ""}', "invalid_request"),
        (b'{"model": 7}', "invalid_request"),
        (b'{"model": "smollm2-135m", "stream": "yes"}', "invalid_request"),
        (b'{"model": "smollm2-135m", "max_tokens": -1}', "invalid_request"),
        (b'{"model": "smollm2-135m", "max_tokens": true}', "invalid_request"),
        (b'{"model": "smollm2-135m", "stream_options": 3}', "invalid_request"),
    ],
)
def test_a_bad_body_is_400(gateway: Gateway, body: bytes, code: str) -> None:
    answer = gateway.request("POST", CHAT, body)
    assert (answer.status, answer.code) == (400, code)
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}


def test_an_unknown_model_is_404(gateway: Gateway) -> None:
    answer = gateway.request("POST", CHAT, {"model": "gpt-4o", "messages": []})
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert "gpt-4o" in answer.json["error"]["message"]
    assert gateway.request("GET", "/v1/models/gpt-4o").status == 404
    card = gateway.request("GET", f"/v1/models/{MODEL}").json
    assert (card["id"], card["root"]) == (MODEL, MODEL)  # what is elsewhere is no model of this machine's


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405), ("DELETE", "/v1/models", 405), ("POST", "/healthz", 405),
        ("POST", f"/v1/models/{MODEL}", 405),
        ("POST", "/sleep", 404), ("GET", "/metrics", 404), ("POST", "/invocations", 404), ("GET", "/docs", 404),
        ("GET", "/", 404), ("POST", "/v1/chat/completions/", 404), ("POST", "//v1/chat/completions", 404),
        ("POST", "/v1/../collective_rpc", 404), ("POST", "/v1%2Fchat/completions", 404), ("GET", "/_fake/log", 404),
        ("POST", "/v1/load_lora_adapter", 404), ("GET", "/status", 404),
    ],
)  # fmt: skip
def test_only_the_routes_pass(gateway: Gateway, method: str, path: str, status: int) -> None:
    answer = gateway.request(method, path, b"{}")
    assert answer.status == status
    assert answer.code == ("method_not_allowed" if status == 405 else "not_found")
    assert ("allow" in answer.headers) == (status == 405)


def test_errors_take_anthropics_shape_on_its_routes(gateway: Gateway) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = gateway.request("POST", path, {"model": "no"})
        assert answer.status == 404
        assert answer.json["type"] == "error" and answer.json["error"]["type"] == "not_found_error"


def test_a_body_that_is_too_large_is_413(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url), gateway='max_body = "2KiB"'))
    big = chat("x" * 4000)
    assert gateway.request("POST", CHAT, big).code == "request_too_large"
    chunked = gateway.request("POST", CHAT, json.dumps(big), Transfer_Encoding="identity")
    assert chunked.status in (400, 413)
    assert gateway.request("POST", CHAT, chat("x")).status == 200
    with gateway.open("POST", CHAT, iter([b"x" * 1500] * 3)) as response:
        assert response.status == 413


def test_an_engines_own_refusal_passes_unchanged(gateway: Gateway) -> None:
    for status in (400, 404, 500, 503):
        for stream in (False, True):
            answer = gateway.request("POST", CHAT, fault(f"status={status}", stream=stream))
            assert answer.status == status
            assert answer.json["error"] == {
                "message": f"scripted status {status}", "type": "BadRequestError", "param": None, "code": status,
            }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_no_first_token_is_504(gateway: Gateway, stream: bool) -> None:
    answer = gateway.request("POST", CHAT, fault("first=30", stream=stream))
    assert (answer.status, answer.code) == (504, "first_token_timeout")
    assert wait_until(gateway.idle, 5, "nothing runs", 0.05)


@pytest.fixture(scope="module")
def narrow(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    """Room for one call and one that waits."""
    made = Gateway(
        tmp_path_factory.mktemp("narrow"),
        config(remote(engine.url), gateway=QUICK.replace("max_in_flight = 64", "max_in_flight = 1\nqueue_size = 1")),
    )
    yield made  # type: ignore[misc]
    made.kill()


def test_a_full_queue_and_a_long_wait_are_429(narrow: Gateway) -> None:
    with narrow.open("POST", CHAT, fault("gap=0.3,tokens=8", stream=True)) as running:
        running.read(10)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(narrow.request, "POST", CHAT, chat())
            wait_until(lambda: narrow.admin("/status")["gateway"]["queued"] == 1, 5, "one waits", 0.02)
            refused = narrow.request("POST", CHAT, chat())
            late = waiting.result()
    assert (refused.status, refused.code) == (429, "queue_full")
    assert (late.status, late.code) == (429, "queue_timeout")
    for answer in (refused, late):
        assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert wait_until(narrow.idle, 5, "nothing runs", 0.05)


def test_a_call_that_waits_is_served_when_there_is_room(narrow: Gateway) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(narrow.request, "POST", CHAT, fault("first=0.2"))
        wait_until(lambda: narrow.admin("/status")["gateway"]["running"] == 1, 5, "one runs", 0.02)
        second = narrow.request("POST", CHAT, chat())
        assert first.result().status == second.status == 200
    assert int(second.headers["x-queue-time-ms"]) > 0


# --- keys -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def keyed(engine: FakeEngine, start: Start, tmp_path: Path) -> tuple[Gateway, Path]:
    file = tmp_path / "keys.toml"
    return start(config(remote(engine.url), auth=f'keys_file = "{file}"')), file


def test_keys_are_required_and_learned_while_running(keyed: tuple[Gateway, Path]) -> None:
    gateway, file = keyed
    now = time.time()
    refused = gateway.request("POST", CHAT, chat())
    assert (refused.status, refused.code) == (401, "invalid_api_key")
    assert "llm-appliance keys create" in refused.json["error"]["message"]
    for method, path in (("GET", "/v1/models"), ("GET", "/nothing"), ("DELETE", CHAT), ("GET", "/metrics")):
        assert gateway.request(method, path).status == 401
    for path in ("/healthz", "/readyz"):
        assert gateway.request("GET", path).status == 200

    _, secret = keystore.create(str(file), "alice", now)
    wait_until(lambda: gateway.request("GET", "/v1/models", x_api_key=secret).status == 200, 2, "the key works", 0.05)
    listed = gateway.request("GET", "/v1/models", Authorization=f"Bearer {secret}")
    assert [model["id"] for model in listed.json["data"]] == [MODEL]
    assert "keys create" not in gateway.request("POST", CHAT, chat()).json["error"]["message"]

    keystore.revoke(str(file), "alice", now)
    wait_until(lambda: gateway.request("GET", "/v1/models", x_api_key=secret).status == 401, 2, "it is revoked", 0.05)
    revoked = gateway.request("GET", "/v1/models", Authorization=f"Bearer {secret}")
    assert (revoked.status, revoked.code) == (401, "invalid_api_key")


def test_a_keys_allowlist_expiry_and_a_file_that_goes_bad(keyed: tuple[Gateway, Path]) -> None:
    gateway, file = keyed
    now = time.time()
    _, other = keystore.create(str(file), "other", now, models=["else"])
    _, old = keystore.create(str(file), "old", now, expires=now - 10)
    _, good = keystore.create(str(file), "good", now, models=[MODEL])
    gateway.reload()
    refused = gateway.request("POST", CHAT, chat(), Authorization=f"Bearer {other}")
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    assert gateway.request("GET", "/v1/models", Authorization=f"Bearer {other}").json["data"] == []
    expired = gateway.request("POST", CHAT, chat(), Authorization=f"Bearer {old}")
    assert expired.status == 401 and "expired" in expired.json["error"]["message"]
    assert gateway.request("POST", CHAT, chat(), Authorization=f"bearer {good}").status == 200

    file.write_text("[[key]]\nid = 3\n")
    wait_until(lambda: "the keys stay as they were" in gateway.text(), 3, "the bad file is reported", 0.05)
    assert gateway.request("POST", CHAT, chat(), Authorization=f"Bearer {good}").status == 200
    assert gateway.admin("/status")["keys"]["problem"]


def test_no_prompt_and_no_key_in_any_log(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    _, secret = keystore.create(str(file), "alice", time.time())
    audit = tmp_path / "audit"
    audit.mkdir()
    text = config(remote(engine.url), auth=f'keys_file = "{file}"').replace(
        "[audit]\nenabled = false", f'[audit]\ndirectory = "{audit}"'
    )
    gateway = start(text)
    for script in ("tokens=3", "reset=2", "garbage", "status=400", "status=500", "error=2", "refuse"):
        for stream in (False, True):
            gateway.request(
                "POST", CHAT, chat(f"MARKED-PROMPT [[fault:{script}]]", stream=stream), Authorization=f"Bearer {secret}"
            )
    gateway.request("POST", CHAT, b'{"model": "MARKED', Authorization=f"Bearer {secret}")
    gateway.request("POST", CHAT, chat("MARKED-PROMPT"), Authorization="Bearer sk-MARKED-WRONG-KEY")
    assert gateway.stop() == 0
    ledger = "".join(path.read_text() for path in audit.glob("usage-*.jsonl"))
    assert ledger.count("\n") == 16 and '"key_id":"k-' in ledger
    for kept in (gateway.text(), ledger):
        assert "MARKED" not in kept and secret not in kept and "Paris" not in kept
    told = Counter((line["status"], line["outcome"]) for line in map(json.loads, ledger.splitlines()))
    assert told[400, "ok"] == told[500, "engine_error"] == 2 and told[200, "ok"]
    assert told[200, "broken"] and told[401, "refused"] == 1 and "outcome=engine_error" in gateway.text()
