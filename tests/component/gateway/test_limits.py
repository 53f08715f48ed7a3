"""Limits of keys through the real gateway: who is refused with which hints, what comes back, what is kept."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from appliance.config.model import KeyLimits
from appliance.host import keystore
from tests.component.gateway.conftest import QUICK, Start
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, Response, chat, config, fault, remote
from tests.support.waiting import clear_of_midnight, wait_until

CHAT = "/v1/chat/completions"
Make = Callable[..., str]


@pytest.fixture
def keys(tmp_path: Path) -> Make:
    """Make a key with limits; its secret."""

    def make(name: str, **limits: Any) -> str:
        return keystore.create(str(tmp_path / "keys.toml"), name, time.time(), limits=KeyLimits(**limits))[1]

    return make


@pytest.fixture
def limited(engine: FakeEngine, start: Start, tmp_path: Path) -> Gateway:
    """Keys required, state in a directory of the test's own."""
    (tmp_path / "state" / "gateway").mkdir(parents=True)
    return start(
        config(remote(engine.url), gateway=QUICK + 'keepalive = "60s"\n', auth=f'keys_file = "{tmp_path}/keys.toml"'),
        LLM_APPLIANCE_STATE=str(tmp_path / "state"),
    )


def ask(gateway: Gateway, secret: str, body: dict[str, Any] | None = None, path: str = CHAT) -> Response:
    return gateway.request("POST", path, body or chat(max_tokens=8), Authorization=f"Bearer {secret}")


def nothing_is_held(gateway: Gateway) -> bool:
    status = gateway.admin("/status")
    return bool(gateway.idle() and status["keys"]["running"] == status["keys"]["reserved_tokens"] == 0)


@pytest.mark.slow
def test_a_minutes_requests_and_the_sdk_that_waits_for_the_next(limited: Gateway, keys: Make) -> None:
    import openai

    secret = keys("alice", rpm=60)
    first = ask(limited, secret)
    assert first.status == 200
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == (
        "60",
        "59",
    )
    assert first.headers["x-ratelimit-reset-requests"].endswith("s") and "x-ratelimit-limit-tokens" not in first.headers
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(limited, secret), range(80)))
    refused = [answer for answer in answers if answer.status == 429]
    assert refused and len(refused) <= 21 and {answer.code for answer in refused} == {"rate_limit_exceeded"}
    for answer in refused:
        assert answer.headers["retry-after"] in ("1", "2") and "x-should-retry" not in answer.headers
        assert 0 < int(answer.headers["retry-after-ms"]) <= 1100
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    seen: list[int] = []
    hooks = {"response": [lambda response: seen.append(response.status_code)]}
    with openai.OpenAI(base_url=limited.base, api_key=secret, max_retries=2, timeout=10,
                       http_client=openai.DefaultHttpxClient(event_hooks=hooks)) as client:  # fmt: skip

        def refused_once() -> bool:
            """It obeyed the hint, and one retry was enough; refused not at all where a second had just passed."""
            with pytest.raises(openai.RateLimitError):
                while True:
                    client.with_options(max_retries=0).models.with_raw_response.list()  # not counted: no engine works
                    client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=[])
            seen.clear()
            assert client.chat.completions.create(model=MODEL, messages=[]).choices
            assert seen in ([429, 200], [200])
            return len(seen) == 2

        wait_until(refused_once, 30, "a call is refused once", 0)
    assert wait_until(lambda: nothing_is_held(limited), 2, "nothing is held", 0.02)


def test_tokens_are_reserved_settled_and_refunded(limited: Gateway, keys: Make) -> None:
    secret = keys("bob", tpm=6000)
    answer = ask(limited, secret, chat(max_tokens=5000))  # the fake engine answers five thousand words
    assert answer.status == 200 and answer.headers["x-ratelimit-limit-tokens"] == "6000"
    over = ask(limited, secret, chat(max_tokens=2000))
    assert (over.status, over.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(over.headers["retry-after"]) <= 60 and "6000 tokens a minute" in over.json["error"]["message"]
    never = ask(limited, secret, chat(max_tokens=7000))
    assert (never.code, never.headers["x-should-retry"]) == ("rate_limit_exceeded", "false")
    assert "retry-after" not in never.headers

    other = keys("carol", tpm=6000)
    for script in ("tokens=3", "status=400", "refuse", "error=0", "reset=0"):  # what was reserved comes back each time
        assert ask(limited, other, fault(script, max_tokens=5700, stream=True)).status != 429
    with limited.open("POST", CHAT, fault("gap=1", max_tokens=5700, stream=True), Authorization=f"Bearer {other}"):
        pass  # and when the client leaves
    assert wait_until(lambda: nothing_is_held(limited), 2, "nothing is held", 0.02)
    assert ask(limited, other, chat(max_tokens=5700)).status == 200


def test_requests_at_once(limited: Gateway, keys: Make) -> None:
    secret = keys("dave", parallel=1)
    with limited.open("POST", CHAT, fault("gap=0.1,tokens=50", stream=True), Authorization=f"Bearer {secret}") as one:
        one.read(10)
        refused = ask(limited, secret)
        assert (refused.status, refused.code) == (429, "concurrency_limit")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
    wait_until(lambda: nothing_is_held(limited), 2, "the place is free", 0.02)
    assert ask(limited, secret).status == 200


def test_a_cap_on_answers_and_on_prompts(limited: Gateway, keys: Make, engine: FakeEngine) -> None:
    secret = keys("erin", max_tokens=20, max_prompt=500)
    over = ask(limited, secret, chat(max_tokens=21))
    assert (over.status, over.code, over.json["error"]["param"]) == (400, "invalid_request", "max_tokens")
    assert ask(limited, secret, chat(max_tokens=20)).status == 200
    assert ask(limited, secret, chat("x" * 500)).code == "request_too_large"
    for fields in ({}, {"stream": True}, {"max_tokens": None}, {"max_output_tokens": 3}):
        engine.log.clear()
        assert ask(limited, secret, chat(**fields)).status == 200
        assert engine.log[-1]["max_tokens"] == 20  # a request that names no limit gets the key's
    ask(limited, secret, {"model": MODEL, "prompt": "x"}, "/v1/completions")
    assert engine.log[-1]["max_tokens"] == 16  # an engine's own is smaller
    several = ask(limited, secret, chat(n=4, max_tokens=6))
    assert (several.status, several.json["error"]["param"]) == (400, "max_tokens")
    assert "6 for each of 4 answers" in several.json["error"]["message"]
    ask(limited, secret, {"model": MODEL, "prompt": ["x", "y"], "n": 2}, "/v1/completions")
    assert engine.log[-1]["max_tokens"] == 5  # the answers share the cap


def test_several_answers_are_reserved_and_settled(limited: Gateway, keys: Make) -> None:
    secret = keys("heidi", tpm=1000)
    for body in ({"prompt": ["x"] * 30, "max_tokens": 40}, {"prompt": "x", "n": 30, "max_tokens": 40}):
        never = ask(limited, secret, {"model": MODEL, **body}, "/v1/completions")
        assert (never.code, never.headers["x-should-retry"]) == ("rate_limit_exceeded", "false")
    for _ in range(3):  # and no more than was used stays so
        answer = ask(limited, secret, {"model": MODEL, "prompt": ["x"] * 20, "max_tokens": 40}, "/v1/completions")
        assert answer.status == 200 and int(answer.headers["x-ratelimit-remaining-tokens"]) < 200


def test_an_answer_that_takes_longer_than_its_key_may(limited: Gateway, keys: Make, engine: FakeEngine) -> None:
    clear_of_midnight(20)
    secret, unhurried = keys("ivan", stream_time=1, daily_tokens=100_000), keys("judy", stream_time=60)
    slow = fault("gap=0.1,tokens=20", stream=True, max_tokens=500)
    late = fault("first=0.9,head=0.9", max_tokens=500)
    with ThreadPoolExecutor(4) as pool:
        streamed = pool.submit(ask, limited, secret, slow)
        blocked = pool.submit(ask, limited, secret, late)
        message = pool.submit(ask, limited, secret, slow, "/v1/messages")
        assert ask(limited, unhurried, slow).events[-1] == b"data: [DONE]"
    cut = streamed.result()
    assert cut.status == 200 and b"[DONE]" not in cut.body and 3 <= len(cut.events) < 21
    error = json.loads(cut.events[-1].removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("stream_time_exceeded", "timeout_error") and "1 s" in error["message"]
    assert message.result().events[-1].startswith(b"event: error\n")
    answer = blocked.result()
    assert (answer.status, answer.code) == (504, "stream_time_exceeded")
    assert answer.headers["x-should-retry"] == "false" and "retry-after" not in answer.headers
    assert wait_until(lambda: nothing_is_held(limited), 2, "nothing is held", 0.02)
    assert wait_until(lambda: not engine.engine.running, 2, "the engine has stopped its work", 0.02)
    lines = wait_until(
        lambda: [line for line in limited.text().splitlines() if "code=stream_time_exceeded" in line],
        3,
        "records",
        0.02,
    )
    assert sum("outcome=broken" in line for line in lines) == 2 and sum("status=504" in line for line in lines) == 1
    # Prompts and the events that came were worked for: the key pays for them, and for no more. One API tells the prompt
    # of a stream in its first event, of the others it is guessed.
    state = limited.directory.parent / "state" / "gateway" / "use.json"

    def used() -> int:
        return int(max((key["day"][1] for key in json.loads(state.read_text())["keys"].values()), default=0))

    prompts = 7 + sum(len(json.dumps(body)) // 4 + 1 for body in (slow, late))
    events = sum(int(found) for found in re.findall(r"stream_time_exceeded.* events=(\d+)", limited.text()))
    assert events >= 6
    wait_until(lambda: used() == prompts + events, 5, "what was used", 0.05)


@pytest.mark.slow
def test_the_days_tokens_outlive_a_restart_and_the_sdk_gives_up(
    limited: Gateway, keys: Make, engine: FakeEngine
) -> None:
    import openai

    clear_of_midnight(30)
    secret = keys("frank", daily_tokens=200)
    assert ask(limited, secret, fault("tokens=150", max_tokens=150)).status == 200

    def refused() -> None:
        engine.log.clear()
        before = limited.text().count("code=quota_exceeded")
        client = openai.OpenAI(base_url=limited.base, api_key=secret, max_retries=5, timeout=10)
        with client, pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model=MODEL, messages=[], max_tokens=100)
        assert caught.value.code == "quota_exceeded"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert 0 < int(caught.value.response.headers["retry-after"]) <= 86400
        wait_until(lambda: limited.text().count("code=quota_exceeded") > before, 3, "its record", 0.02)
        assert limited.text().count("code=quota_exceeded") == before + 1 and not engine.log  # it did not try again

    refused()
    assert limited.stop() == 0
    limited.start_again()
    refused()
    state = limited.directory.parent / "state" / "gateway" / "use.json"
    kept = wait_until(state.read_text, 1, "the counts", 0.02)
    limited.process.kill()  # without a word: what was written before holds
    limited.process.wait()
    limited.start_again()
    refused()
    assert state.read_text() == kept


def test_a_limit_of_nothing_is_not_one(limited: Gateway, keys: Make, engine: FakeEngine) -> None:
    """Engines have read `max_completion_tokens or max_tokens`, and what is in neither is as much as fits."""
    secret = keys("kim", max_tokens=20)
    refused = ask(limited, secret, chat(max_completion_tokens=0, max_tokens=1_000_000))
    assert refused.json["error"]["param"] == "max_tokens"
    engine.log.clear()
    assert ask(limited, secret, chat(max_completion_tokens=0)).status == 200
    assert engine.log[-1]["max_tokens"] == 20


def test_limits_change_while_the_gateway_runs(limited: Gateway, keys: Make, tmp_path: Path) -> None:
    secret = keys("grace", rpm=1)
    assert ask(limited, secret).status == 200 and ask(limited, secret).status == 429
    file = tmp_path / "keys.toml"
    file.write_text(file.read_text().replace("rpm = 1\n", "rpm = 1000\n"))
    wait_until(lambda: ask(limited, secret).status == 200, 3, "the new limit", 0.1)


def test_another_keys_call_does_not_wait_behind_a_queue(
    engine: FakeEngine, start: Start, keys: Make, tmp_path: Path
) -> None:
    gateway = start(
        config(
            remote(engine.url),
            gateway="[gateway.admission]\nmax_in_flight = 1\nqueue_size = 20",
            auth=f'keys_file = "{tmp_path}/keys.toml"',
        )
    )
    many, one, background = keys("many"), keys("one"), keys("background", priority="batch")
    with ThreadPoolExecutor(30) as pool:
        queued = lambda count: wait_until(  # noqa: E731
            lambda: gateway.admin("/status")["gateway"]["queued"] == count, 10, f"{count} wait", 0.02
        )
        slow, held = fault("first=0.05", max_tokens=400), fault("gap=0.2,tokens=1000", stream=True)
        with gateway.open("POST", CHAT, held, Authorization=f"Bearer {background}") as first:
            first.read(10)
            low = pool.submit(ask, gateway, background, slow)
            queued(1)
            behind = [pool.submit(ask, gateway, many, slow) for _ in range(10)]
            queued(11)
            later = pool.submit(ask, gateway, one, chat(max_tokens=8))
            queued(12)
        mine = later.result()
        done = [answer.result() for answer in behind]
        waits = sorted(int(answer.headers["x-queue-time-ms"]) for answer in done)
        assert int(mine.headers["x-queue-time-ms"]) <= waits[3]
        assert int(low.result().headers["x-queue-time-ms"]) >= waits[6]
    assert wait_until(lambda: nothing_is_held(gateway), 2, "nothing is held", 0.02)


# --- nothing leaks ----------------------------------------------------------------------------------------------------
BURST = 40
SCRIPTS = ("tokens=2", "tokens=2", "first=0.02", "gap=0.002,tokens=6", "refuse", "reset=0", "reset=3", "status=400",
           "error=2", "eof=3", "head=0.02", "garbage")  # fmt: skip


class Storm:
    """Clients that ask, read a little and go at any moment; counts what they were told."""

    def __init__(self, port: int, secrets: list[str], chance: random.Random, calls: int) -> None:
        self.port, self.secrets, self.chance, self.calls = port, secrets, chance, calls
        self.numbers = iter(range(calls))
        self.told: Counter[str] = Counter()

    async def client(self) -> None:
        for number in self.numbers:
            patience = self.chance.choice((0.0, 0.004, 0.03, 5.0, 5.0, 5.0, 5.0, 5.0))
            secret, script = self.chance.choice(self.secrets), self.chance.choice(SCRIPTS)
            await self.call(number, secret, script, patience, stream=self.chance.random() < 0.6)

    async def call(self, number: int, secret: str, script: str, patience: float, *, stream: bool = False) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.request(number, secret, script, stream))
            await asyncio.wait_for(self.read(reader), patience)
        except (asyncio.TimeoutError, TimeoutError):
            self.told["left"] += 1
        except ConnectionError:
            self.told["cut"] += 1
        finally:
            writer.transport.abort()

    async def read(self, reader: asyncio.StreamReader) -> None:
        data = await reader.read(-1)
        code = re.search(rb'"code":"(\w+)"', data)
        self.told[code[1].decode() if code else data[9:12].decode()] += 1

    def request(self, number: int, secret: str, script: str, stream: bool) -> bytes:
        body = json.dumps(fault(script, stream=stream, max_tokens=50)).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: storm-{number}\r\n"
            f"Authorization: Bearer {secret}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def run(self, patient: str) -> None:
        """All calls; the last come at once and wait longer than the queue lets them, however fast the machine is."""
        await asyncio.gather(*(self.client() for _ in range(48)))
        await asyncio.gather(*(self.call(self.calls + number, patient, "first=0.4", 5.0) for number in range(BURST)))


@pytest.mark.parametrize("calls", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_calls_that_end_anyhow_leave_every_counter_at_zero(
    engine: FakeEngine, start: Start, keys: Make, tmp_path: Path, calls: int
) -> None:
    secrets = [
        keys("few", parallel=6),
        keys("slow", rpm=calls * 6 // 1000, priority="batch"),
        keys("poor", daily_tokens=calls // 2),
        keys("free"),
        keys("first", tpm=400_000, priority="interactive"),
    ]
    gateway = start(
        config(
            remote(engine.url),
            gateway=QUICK.replace("max_in_flight = 64", "max_in_flight = 16\nqueue_size = 12").replace("500ms", "100ms")
            + 'keepalive = "100ms"\n',
            auth=f'keys_file = "{tmp_path}/keys.toml"',
        )
    )
    storm = Storm(gateway.port, secrets, random.Random(31), calls)
    asyncio.run(storm.run(secrets[3]))
    assert sum(storm.told.values()) == calls + BURST
    for word in ("200", "400", "left", "concurrency_limit", "quota_exceeded", "rate_limit_exceeded", "queue_full",
                 "queue_timeout", "engine_restarting", "engine_died", "engine_error"):  # fmt: skip
        assert storm.told[word] > 5, storm.told
    assert wait_until(lambda: nothing_is_held(gateway), 5, "nothing is held", 0.05)
    assert gateway.control("/ledger")["engines"]["default"]["inflight"] == 0
    assert "Traceback" not in gateway.text() and "failed" not in gateway.text()  # a lease that came back twice says so
    for secret in (secrets[0], secrets[3], secrets[4]):
        assert ask(gateway, secret).status == 200
