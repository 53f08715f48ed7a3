"""What arrival times say of what stands in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy import delivery
from appliance.policy.delivery import Event, Stream
from appliance.policy.finding import Finding, Verdict

INTERVAL = 0.25
OFFSET = 12345.0  # between the two clocks


def stream(arrival: Callable[[int, float], float], *, count: int = 12, **fields: object) -> Stream:
    """Events 0.25 s apart and a last one 5 s later; `arrival` maps number and moment to the moment of arrival."""
    sent = [n * INTERVAL for n in range(count)] + [count * INTERVAL + 5]
    events = tuple(
        Event(sent=at, arrived=OFFSET + arrival(n, at), comments_sent=3 * (n == count), comments_seen=3 * (n == count))
        for n, at in enumerate(sent)
    )
    made = {"silence": 5.0, "whole": True, "lasted": 8.0, "quiet": 0.0, **fields}
    return Stream(interval=INTERVAL, events=events, **made)  # type: ignore[arg-type]


ARRIVALS: dict[str, tuple[Callable[[int, float], float], Verdict]] = {
    "at once": (lambda n, at: at, Verdict.OK),
    "all with the same delay": (lambda n, at: at + 3, Verdict.OK),
    "all at the end": (lambda n, at: 8.0, Verdict.FAIL),
    "in two lumps": (lambda n, at: 1.5 if n < 6 else 8.0, Verdict.FAIL),
    "two by two": (lambda n, at: at + INTERVAL * (n % 2 == 0), Verdict.FAIL),
    "one late": (lambda n, at: at + 2 * (n == 5), Verdict.WARN),
    "one a little late": (lambda n, at: at + 0.5 * (n == 5), Verdict.OK),
    "the last one late": (lambda n, at: at + 3 * (n == 12), Verdict.OK),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_events_one_by_one(name: str) -> None:
    arrival, expected = ARRIVALS[name]
    finding = delivery.one_by_one(stream(arrival))
    assert finding.verdict is expected, finding
    assert bool(finding.remedy) == (expected is not Verdict.OK)


@given(st.lists(st.floats(0, 0.2), min_size=13, max_size=13), st.floats(-1e6, 1e6))
def test_jitter_below_the_interval_is_no_buffer_whatever_the_clocks_say(jitter: list[float], offset: float) -> None:
    assert delivery.one_by_one(stream(lambda n, at: at + jitter[n] + offset)).verdict is Verdict.OK


@given(st.integers(3, 12))
def test_a_buffer_of_any_size_is_found(size: int) -> None:
    """It lets go of `size` events at a time, when the last of them came."""
    finding = delivery.one_by_one(stream(lambda n, at: (n // size + 1) * size * INTERVAL))
    assert finding.verdict is Verdict.FAIL


def test_a_stream_that_ends_at_once_tells_nothing() -> None:
    assert delivery.one_by_one(stream(lambda n, at: at, count=1)).verdict is Verdict.UNKNOWN
    empty = Stream(interval=1, silence=1, events=(), whole=False, lasted=0.1, quiet=0.1)
    assert delivery.one_by_one(empty).verdict is delivery.comments(empty).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("judge", "fields", "verdict", "said"),
    [
        (delivery.held_open, {}, Verdict.OK, "8 s with 5 s of silence"),
        (
            delivery.held_open,
            {"whole": False, "quiet": 3.2},
            Verdict.FAIL,
            "cut after 8.0 s, 3.2 s after its last byte",
        ),
        (delivery.held_open, {"whole": False, "quiet": 0.1}, Verdict.FAIL, "cut after 8.0 s"),
        (delivery.uncompressed, {}, Verdict.OK, "as they are"),
        (delivery.uncompressed, {"encoding": "identity"}, Verdict.OK, "as they are"),
        (delivery.uncompressed, {"encoding": "gzip"}, Verdict.FAIL, "(gzip)"),
        (delivery.http_version, {}, Verdict.OK, "HTTP/1.1 at the gateway, 1.1 here"),
        (delivery.http_version, {"client_version": "1.0"}, Verdict.FAIL, "arrives in HTTP/1.0"),
        (delivery.http_version, {"gateway_version": "1.0"}, Verdict.FAIL, "asked in HTTP/1.0"),
        (delivery.comments, {}, Verdict.OK, "3 of 3"),
    ],
)
def test_the_other_questions(
    judge: Callable[[Stream], Finding], fields: dict[str, object], verdict: Verdict, said: str
) -> None:
    finding = judge(stream(lambda n, at: at, **fields))
    assert finding.verdict is verdict and said in finding.evidence
    assert bool(finding.remedy) == (verdict is Verdict.FAIL)


def test_comments_that_are_taken_out_are_missed() -> None:
    event = Event(sent=0, arrived=0, comments_sent=5, comments_seen=1)
    finding = delivery.comments(Stream(interval=1, silence=1, events=(event,), whole=True, lasted=1, quiet=0))
    assert finding.verdict is Verdict.FAIL and finding.evidence.startswith("1 of 5")


@pytest.mark.parametrize("forwarded", ["absent", "believed", "ignored"])
def test_a_proxy_that_nobody_trusts_is_named(forwarded: str) -> None:
    finding = delivery.address("192.0.2.1", forwarded)
    assert (finding.verdict is Verdict.WARN) == (forwarded == "ignored") == ('["192.0.2.1"]' in finding.remedy)


@pytest.mark.parametrize(
    ("arrived", "total", "whole", "verdict"),
    [
        ([1 + n / 10 for n in range(20)], 3.0, True, Verdict.OK),
        ([3.0] * 20, 3.0, True, Verdict.WARN),
        ([1.0, 1.1], 1.1, True, Verdict.OK),
        ([1.0, 1.1], 1.1, False, Verdict.FAIL),
        ([], 1.1, False, Verdict.FAIL),
    ],
)
def test_a_real_model(arrived: list[float], total: float, whole: bool, verdict: Verdict) -> None:
    assert delivery.tokens(tuple(arrived), total, whole, "m").verdict is verdict
