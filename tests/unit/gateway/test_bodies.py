from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ApiError
from appliance.gateway.bodies import PIECE, Bodies, Share, keep

steps = st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 70))), max_size=60)


@given(steps)
def test_what_is_held_is_what_the_shares_hold_and_never_too_much(steps: list[tuple[int, int | None]]) -> None:
    bodies = Bodies()
    shares = [Share(bodies) for _ in range(5)]
    for which, size in steps:
        if size is None:
            shares[which].give_back()
        else:
            before = bodies.held
            try:
                shares[which].grow(size, 100)
            except ApiError as error:
                assert (error.code, error.status) == ("gateway_overloaded", 503) and error.retry_after
                assert before + size > 100 and bodies.held == before
        assert bodies.held == sum(share.size for share in shares) <= 100
    for share in shares:
        share.give_back()
        share.give_back()
    assert bodies.held == 0


def test_what_is_only_announced_is_not_held() -> None:
    bodies = Bodies()
    share = Share(bodies)
    share.check(100, 100)
    with pytest.raises(ApiError):
        share.check(101, 100)
    assert bodies.held == 0


@given(st.lists(st.lists(st.integers(0, 2 * PIECE), max_size=4), max_size=30))
def test_pieces_make_the_body_and_small_ones_take_no_more_than_they_hold(sizes: list[list[int]]) -> None:
    kept: list[bytes | bytearray] = []
    came = [[bytes([n % 251]) * size for n, size in enumerate(part)] for part in sizes]
    for pieces in came:
        keep(kept, pieces)
    assert b"".join(kept) == b"".join(piece for pieces in came for piece in pieces)
    large = sum(len(piece) >= PIECE for pieces in came for piece in pieces)
    assert len(kept) <= 2 * large + 1
