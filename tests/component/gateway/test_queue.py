"""What a call that waits is told: its place in the order, and for how long about."""

from __future__ import annotations

import contextlib
import http.client
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.host import keystore
from tests.component.gateway.conftest import QUICK
from tests.support.gatewayprocess import FakeEngine, Gateway, Response, config, fault, remote
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
QUEUED = re.compile(rb": queued position=(\d+)(?: expected_wait_s=(\d+))?\n\n")


@pytest.fixture
def lane(engine: FakeEngine, tmp_path: Path) -> Iterator[Gateway]:
    """One call at a time, comments often, keys."""
    quick = QUICK.replace("max_in_flight = 64", "max_in_flight = 1\nqueue_size = 8").replace("500ms", "20s")
    made = Gateway(
        tmp_path / "lane",
        config(remote(engine.url), gateway=quick + 'keepalive = "100ms"\n', auth=f'keys_file = "{tmp_path}/keys.toml"'),
    )
    yield made
    made.kill()


class Lane:
    """A key's calls on the one place of the engine."""

    def __init__(self, gateway: Gateway, keys: Path, name: str) -> None:
        self.gateway = gateway
        self.secret = keystore.create(str(keys), name, time.time())[1]

    def ask(self, script: str) -> Response:
        return self.gateway.request("POST", CHAT, fault(script), Authorization=f"Bearer {self.secret}")

    @contextlib.contextmanager
    def stream(self, script: str) -> Iterator[http.client.HTTPResponse]:
        body = fault(script, stream=True)
        with self.gateway.open("POST", CHAT, body, Authorization=f"Bearer {self.secret}") as response:
            yield response

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """The place is taken until the end of this."""
        with self.stream("gap=0.2,tokens=10000") as response:
            assert response.read(6) == b"data: "
            yield

    def waiting(self, count: int) -> None:
        wait_until(lambda: self.gateway.admin("/status")["gateway"]["queued"] == count, 10, f"{count} wait", 0.01)


def test_a_call_that_waits_is_told_its_place_and_its_time(lane: Gateway, tmp_path: Path) -> None:
    a, b = (Lane(lane, tmp_path / "keys.toml", name) for name in "ab")
    with ThreadPoolExecutor(12) as pool, contextlib.ExitStack() as stack:
        with a.hold():
            behind = []
            for number in range(1, 6):
                behind.append(pool.submit(a.ask, "first=0.3"))
                a.waiting(number)
            other = stack.enter_context(b.stream("tokens=1"))  # last to come, and first in the order
            assert other.readline() == b": queued position=1\n"  # how long nobody knows: nothing was measured
            last = stack.enter_context(a.stream("tokens=1"))
            assert last.readline() == b": queued position=7\n"
        rest = last.read()
        answers = [future.result() for future in behind]
        assert other.read().endswith(b"data: [DONE]\n\n") and rest.endswith(b"data: [DONE]\n\n")
    assert [answer.headers["x-queue-position"] for answer in answers] == ["1", "2", "3", "4", "5"]
    assert last.getheader("x-queue-position") is None and other.getheader("x-queue-time-ms") is None
    assert "x-queue-position" not in a.ask("tokens=1").headers  # it did not wait
    told = QUEUED.findall(rest)
    places = [int(place) for place, _ in told]
    assert places == sorted(places, reverse=True) and places[-1] <= 2
    assert told[-1][1] and 1 <= int(told[-1][1]) <= 10  # measured by then


def test_a_refusal_tells_the_same(lane: Gateway, tmp_path: Path) -> None:
    a = Lane(lane, tmp_path / "keys.toml", "a")
    with ThreadPoolExecutor(12) as pool:
        assert {answer.status for answer in pool.map(a.ask, ["first=0.1"] * 6)} == {200}  # the pace is known now
        with a.hold():
            behind = [pool.submit(a.ask, "tokens=1") for _ in range(8)]
            a.waiting(8)
            refused = a.ask("tokens=1")
        assert {one.result().status for one in behind} == {200}
    assert (refused.status, refused.code) == (429, "queue_full")
    text = re.search(r"it would be number 9, for about (\d+) s$", refused.json["error"]["message"])
    assert text and 1 <= int(text[1]) <= 60
    assert int(text[1]) <= int(refused.headers["retry-after"]) <= 1.15 * int(text[1]) + 1
