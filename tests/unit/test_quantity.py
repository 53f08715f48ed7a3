from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.quantity import UNKNOWN, format_duration, format_signal, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("1h 30m", 5400), ("1h30m", 5400), ("250ms", 0.25), ("1.5m", 90), ("90d", 90 * 86400),
        (" 5 s ", 5), ("2min", 120), ("1w", 604800), ("0s", 0),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "90", "s", "90 seconds", "-5s", "5s!", "1h foo", "5 s 3", "nan s", "1e3s"])
def test_what_is_no_duration_says_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="like 90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("64MiB", 64 << 20), ("10G", 10 << 30), ("1.5GiB", 3 << 29), ("1KB", 1000),
     ("4096", 4096), ("512 MiB", 512 << 20), ("2TB", 2 * 10**12), ("7B", 7)],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 potato", "1e9", "0x10", "1 Mi B"])
def test_what_is_no_size_says_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="like 64MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (4.2, "4.2s"), (5, "5s"), (94.4, "94s"), (303, "5m 3s"), (7500, "2h 5m"), (3 * 86400, "3d"),
     (3600, "1h"), (9.96, "10s")],
)  # fmt: skip
def test_durations_are_printed_as_people_say_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=10**7))
def test_a_printed_duration_can_be_read_again(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.06, abs=0.0006)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_can_be_read_again(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=0.06)


def test_unknown_is_not_a_truth_value() -> None:
    with pytest.raises(TypeError):
        bool(UNKNOWN)
    assert repr(UNKNOWN) == "UNKNOWN"


@pytest.mark.parametrize(("number", "text"), [(9, "SIGKILL"), (7, "SIGBUS"), (99, "signal 99"), (0, "signal 0")])
def test_format_signal(number: int, text: str) -> None:
    assert format_signal(number) == text
