"""Every refusal of the contract, and what its client is told: come back then, or do not."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.config.model import KeyLimits
from appliance.errors import API_CODES
from appliance.host import keystore
from tests.component.gateway.conftest import QUICK, Start
from tests.support.gatewayprocess import FakeEngine, Gateway, Response, config, dict_of, fault, remote
from tests.support.rawclient import connect
from tests.support.waiting import DAY_S, clear_of_midnight, wait_until

CHAT = "/v1/chat/completions"
ELSEWHERE = {  # in streams, of other gateways, and after crashes
    "engine_died", "stream_stalled", "gateway_draining", "config_invalid", "request_quarantined"
}  # fmt: skip
LIMITS = {"free": {}, "few": {"rpm": 1}, "one": {"parallel": 1}, "poor": {"daily_tokens": 60}, "small": {"tpm": 60},
          "short": {"stream_time": 1}}  # fmt: skip
LOCAL = '[[engine]]\nname = "{0}"\nmodel = "builtin:smollm2-135m"\nserved_names = ["{0}"]\n'


class House:
    """One gateway in which everything can go wrong: keys, engines, queue, memory."""

    def __init__(self, directory: Path, engine: FakeEngine) -> None:
        keys = directory / "keys.toml"
        self.secrets = {
            name: keystore.create(str(keys), name, time.time(), limits=KeyLimits(**limits))[1]  # type: ignore[arg-type]
            for name, limits in LIMITS.items()
        }
        self.secrets["barred"] = keystore.create(str(keys), "barred", time.time(), models=["else"])[1]
        engines = (
            remote(engine.url, name="here") + "\n" + "".join(LOCAL.format(name) for name in ("cold", "gone", "kept"))
        )
        quick = QUICK.replace("max_in_flight = 64", "max_in_flight = 1\nqueue_size = 1").replace("500ms", "2s")
        memory = 'max_body = "8KiB"\nmax_bodies = "8KiB"\n'
        self.gateway = Gateway(
            directory / "g",
            config(engines, gateway=memory + quick, auth=f'keys_file = "{keys}"'),
        )

    def settle(self) -> None:
        """What launchers and the supervisor would have written, as far as the gateway has read it."""
        self.gateway.engine_state("cold", "loading")
        self.gateway.engine_state("gone", "serving")
        self.gateway.fleet(kept={"state": "held", "reason": "it was asked for"})
        wait_until(lambda: self.ask(model="kept").code == "engine_held", 5, "the states are read", 0.05)

    def ask(self, script: str = "", *, key: str = "free", **fields: object) -> Response:
        body = {**fault(script, max_tokens=20), **fields}
        return self.gateway.request("POST", CHAT, body, Authorization=f"Bearer {self.secrets.get(key, key)}")

    @contextlib.contextmanager
    def busy(self, key: str = "free") -> Iterator[None]:
        """A stream holds the only place of the engine."""
        body = fault("gap=0.1,tokens=1000", stream=True, max_tokens=20)
        with self.gateway.open("POST", CHAT, body, Authorization=f"Bearer {self.secrets[key]}") as running:
            running.read(10)
            yield
        wait_until(self.gateway.idle, 5, "nothing runs", 0.02)

    # --- one way into each refusal ------------------------------------------------------------------------------------
    def place_taken(self) -> Response:
        with self.busy("one"):
            return self.ask(key="one")

    def again(self, key: str) -> Response:
        self.ask(key=key)
        return self.ask(key=key)

    def used_up(self) -> Response:
        clear_of_midnight(10)
        self.ask("tokens=20", key="poor")
        return self.ask(key="poor")

    def queue_timeout(self) -> Response:
        with self.busy():
            return self.ask()

    def queue_full(self) -> Response:
        with ThreadPoolExecutor(1) as pool, self.busy():
            behind = pool.submit(self.ask)
            wait_until(lambda: self.gateway.admin("/status")["gateway"]["queued"] == 1, 5, "one waits", 0.01)
            answer = self.ask()
            behind.result()
            return answer

    def overloaded(self) -> Response:
        with connect(self.gateway.port) as slow:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.secrets['free']}\r\n"
            slow.sendall(f"{head}Content-Length: 8000\r\n\r\n{' ' * 7900}".encode())
            wait_until(lambda: self.gateway.metric("request_body_bytes") == 7900, 5, "memory is full", 0.02)
            return self.ask("x" * 400)

    def raw(self, body: bytes) -> Response:
        return self.gateway.request("POST", CHAT, body, Authorization=f"Bearer {self.secrets['free']}")


class Row(NamedTuple):
    """A refusal: how it comes about, and when its client is told to come: `soon`, ... `never`; or `nothing` of it."""

    code: str
    provoke: Callable[[House], Response]
    told: str


ROWS = (
    Row("invalid_json", lambda house: house.raw(b"{"), "nothing"),
    Row("invalid_request", lambda house: house.raw(b"{}"), "nothing"),
    Row("invalid_api_key", lambda house: house.ask(key="sk-wrong"), "nothing"),
    Row("model_not_allowed", lambda house: house.ask(key="barred"), "nothing"),
    Row("model_not_found", lambda house: house.ask(model="nobody's"), "nothing"),
    Row("not_found", lambda house: house.gateway.request("GET", "/v2", x_api_key=house.secrets["free"]), "nothing"),
    Row("method_not_allowed", lambda house: house.gateway.request("GET", CHAT, x_api_key=house.secrets["free"]),
        "nothing"),
    Row("request_too_large", lambda house: house.raw(b" " * 9000), "nothing"),
    Row("rate_limit_exceeded", lambda house: house.again("few"), "soon"),
    Row("rate_limit_exceeded", lambda house: house.ask(key="small", max_tokens=100), "never"),
    Row("concurrency_limit", House.place_taken, "soon"),
    Row("quota_exceeded", House.used_up, "tomorrow"),
    Row("quota_exceeded", lambda house: house.ask(key="poor", max_tokens=100), "never"),
    Row("queue_full", House.queue_full, "soon"),
    Row("queue_timeout", House.queue_timeout, "soon"),
    Row("gateway_overloaded", House.overloaded, "soon"),
    Row("engine_starting", lambda house: house.ask(model="cold"), "soon"),
    Row("engine_restarting", lambda house: house.ask(model="gone"), "soon"),
    Row("engine_held", lambda house: house.ask(model="kept"), "later"),
    Row("first_token_timeout", lambda house: house.ask("first=30"), "nothing"),
    Row("stream_time_exceeded", lambda house: house.ask("head=0.7,first=0.9", key="short"), "never"),
    Row("engine_error", lambda house: house.ask("garbage"), "nothing"),
)  # fmt: skip


@pytest.fixture(scope="module")
def house(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"), engine)
    try:
        made.settle()
        yield made
    finally:
        made.gateway.kill()


def judge(answer: Response, code: str, told: str) -> None:
    """The rule, in one place."""
    assert (answer.status, answer.code) == (API_CODES[code][0], code), answer.body
    assert answer.json["error"]["type"] == API_CODES[code][1]
    after, milliseconds = answer.headers.get("retry-after"), answer.headers.get("retry-after-ms")
    assert (answer.headers.get("x-should-retry") == "false") == (told in ("later", "tomorrow", "never"))
    assert (after is not None) == (milliseconds is not None) == (told in ("soon", "later", "tomorrow"))
    if after is not None and milliseconds is not None:
        assert after.isdigit() and int(after) >= 1 and 0 <= int(after) * 1000 - int(milliseconds) < 1000
        if told == "tomorrow":
            assert abs(int(after) - (DAY_S - time.time() % DAY_S)) < 5
        else:
            assert (int(after) <= 120) == (told == "soon")


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.code}-{row.told}" for row in ROWS])
def test_a_refusal_says_whether_and_when_to_try_again(house: House, row: Row) -> None:
    judge(row.provoke(house), row.code, row.told)
    wait_until(house.gateway.idle, 5, "nothing runs", 0.02)


def test_a_gateway_that_stops_says_so(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url), gateway=QUICK))
    kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    with contextlib.closing(kept), gateway.open("POST", CHAT, fault("gap=0.1,tokens=50", stream=True)) as running:
        kept.request("GET", "/healthz")
        kept.getresponse().read()
        running.read(10)
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: gateway.admin("/status")["state"] == "draining", 5, "it drains", 0.02)
        kept.request("GET", "/readyz")
        response = kept.getresponse()
        judge(Response(response.status, dict_of(response), response.read()), "gateway_draining", "soon")


def test_every_refusal_of_the_contract_is_here() -> None:
    assert {row.code for row in ROWS} | ELSEWHERE == set(API_CODES)
