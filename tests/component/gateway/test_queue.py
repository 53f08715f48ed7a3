"""What a call that waits is told: its place in the order, and for how long about."""

from __future__ import annotations

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


def waiting(gateway: Gateway, count: int) -> None:
    wait_until(lambda: gateway.admin("/status")["gateway"]["queued"] == count, 10, f"{count} wait", 0.01)


def test_a_call_that_waits_is_told_its_place_and_its_time(lane: Gateway, tmp_path: Path) -> None:
    a, b = (keystore.create(str(tmp_path / "keys.toml"), name, time.time())[1] for name in "ab")

    def ask(secret: str, script: str, *, stream: bool = False) -> Response:
        return lane.request("POST", CHAT, fault(script, stream=stream), Authorization=f"Bearer {secret}")

    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(ask, a, "first=0.6")
        wait_until(lambda: lane.admin("/status")["gateway"]["running"] == 1, 10, "one runs", 0.01)
        behind = []
        for number in range(1, 6):
            behind.append(pool.submit(ask, a, "first=0.3"))
            waiting(lane, number)
        # The other key's call comes last and is next but one; nothing was measured yet.
        last = pool.submit(ask, a, "tokens=1", stream=True)
        waiting(lane, 6)
        other = ask(b, "tokens=1", stream=True)
        answers = [future.result() for future in behind]
        told = [(int(place), wait) for place, wait in QUEUED.findall(last.result().body)]
    assert "x-queue-position" not in first.result().headers  # it did not wait
    assert [answer.headers["x-queue-position"] for answer in answers] == ["1", "2", "3", "4", "5"]
    found = QUEUED.search(other.body)
    assert found and int(found[1]) <= 2 and b"expected_wait" not in found[0]
    assert last.result().body.startswith(b": queued position=") and "x-queue-position" not in last.result().headers
    places = [place for place, _ in told]
    assert places[0] >= 6 and places == sorted(places, reverse=True) and places[-1] == 1
    assert b"expected_wait_s" not in QUEUED.search(last.result().body)[0]  # type: ignore[index]
    assert told[-1][1] and int(told[-1][1]) <= 5  # measured by then
    assert last.result().events[-1] == b"data: [DONE]"


def test_a_refusal_tells_the_same(lane: Gateway, tmp_path: Path) -> None:
    secret = keystore.create(str(tmp_path / "keys.toml"), "a", time.time())[1]

    def ask(script: str) -> Response:
        return lane.request("POST", CHAT, fault(script), Authorization=f"Bearer {secret}")

    with ThreadPoolExecutor(12) as pool:
        measured = list(pool.map(ask, ["first=0.1"] * 6))
        assert {answer.status for answer in measured} == {200}
        held = pool.submit(ask, "first=0.9")
        wait_until(lambda: lane.admin("/status")["gateway"]["running"] == 1, 10, "one runs", 0.01)
        behind = [pool.submit(ask, "tokens=1") for _ in range(8)]
        waiting(lane, 8)
        refused = ask("tokens=1")
        assert held.result().status == 200 and {one.result().status for one in behind} == {200}
    assert (refused.status, refused.code) == (429, "queue_full")
    text = re.search(r"it would be number 9, for about (\d+) s$", refused.json["error"]["message"])
    assert text and 1 <= int(text[1]) <= 30
    assert int(text[1]) <= int(refused.headers["retry-after"]) <= 1.15 * int(text[1]) + 1
