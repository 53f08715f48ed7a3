from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.policy.causes import CAUSES
from appliance.policy.quarantine import KEPT_S, MOST, OF_A_REQUEST, Quarantine, Standing

FREE, SUSPECT, ALONE, REFUSED = Standing
GUILTY, ONE, OTHER = 1, 2, 3


@pytest.mark.parametrize(
    ("crashes", "standings"),
    [
        ([], {GUILTY: FREE}),
        ([{GUILTY}], {GUILTY: SUSPECT, ONE: FREE}),
        ([{GUILTY, ONE}, {GUILTY}], {GUILTY: REFUSED, ONE: SUSPECT}),
        ([{GUILTY, ONE}, {GUILTY, OTHER}], {GUILTY: REFUSED, ONE: SUSPECT, OTHER: SUSPECT}),
        ([{GUILTY, ONE}, {GUILTY, ONE}], {GUILTY: ALONE, ONE: ALONE}),
        ([{GUILTY, ONE, OTHER}, {GUILTY, ONE}, {GUILTY, OTHER}], {GUILTY: REFUSED, ONE: ALONE, OTHER: ALONE}),
        ([{GUILTY}, {ONE}], {GUILTY: SUSPECT, ONE: SUSPECT}),
        ([{GUILTY}, set()], {GUILTY: SUSPECT}),
    ],
)
def test_what_crashes_make_of_bodies(crashes: list[set[int]], standings: dict[int, Standing]) -> None:
    policy = Quarantine()
    refused = [policy.crashed(bodies, 10.0 * at) for at, bodies in enumerate(crashes)]
    assert {body: policy.standing(body, 100.0) for body in standings} == standings
    assert [body for body in refused if body is not None] == [b for b, s in standings.items() if s is REFUSED]
    assert bool(policy.cases) is any(crashes)


def test_what_is_served_is_cleared_at_once() -> None:
    policy = Quarantine()
    policy.crashed({GUILTY, ONE}, 0.0)
    policy.served(ONE)
    assert policy.standing(ONE, 1.0) is FREE
    assert policy.crashed({GUILTY, ONE}, 2.0) == GUILTY  # it alone was there both times and never served
    policy.served(GUILTY)  # sent twice at once, one of the two came through
    assert policy.standing(GUILTY, 3.0) is FREE and policy.counts(3.0) == (1, 0)


def test_everything_is_forgotten_in_time() -> None:
    policy = Quarantine()
    policy.crashed({GUILTY, ONE}, 0.0)
    policy.crashed({GUILTY}, 100.0)
    assert policy.left_s(GUILTY, 200.0) == KEPT_S - 100.0
    assert policy.standing(GUILTY, 99.0 + KEPT_S) is REFUSED and policy.standing(ONE, KEPT_S) is FREE
    assert policy.standing(GUILTY, 100.0 + KEPT_S) is FREE and not policy.cases
    assert policy.crashed({GUILTY}, 200.0 + KEPT_S) is None  # it begins anew


def test_crashes_far_apart_are_not_two() -> None:
    policy = Quarantine()
    policy.crashed({GUILTY}, 0.0)
    assert policy.crashed({GUILTY}, KEPT_S) is None and policy.standing(GUILTY, KEPT_S) is SUSPECT


def test_how_many_may_be_what_an_engine_dies_of() -> None:
    policy = Quarantine()
    assert policy.suspects({GUILTY, ONE}, 0.0) == 0
    policy.crashed({GUILTY, ONE}, 0.0)
    assert policy.suspects({GUILTY, OTHER}, 1.0) == 1 and policy.suspects({GUILTY, ONE}, 1.0) == 2
    policy.crashed({GUILTY, ONE}, 2.0)
    policy.crashed({OTHER}, 3.0)
    assert policy.suspects({GUILTY, OTHER}, 4.0) == 1  # the one with more crashes would be refused


def test_a_crowd_does_not_grow_without_end() -> None:
    policy = Quarantine()
    for first in range(0, 3 * MOST, 500):
        policy.crashed(range(first, first + 500), 1.0)
    assert sum(policy.counts(1.0)) == MOST
    policy.crashed(range(2 * MOST), 2.0)
    assert sum(policy.counts(2.0)) == MOST


def test_which_deaths_a_request_can_bring_about() -> None:
    assert set(CAUSES) > OF_A_REQUEST
    others = {
        word for word in CAUSES if word.startswith(("host-", "gpu-", "shm-", "kv-", "start-", "driver-", "nvlink-"))
    }
    others |= {"engine-died", "unknown", "hang-scheduler", "hang-rank-absent", "hang-init", "config-error"}
    assert not OF_A_REQUEST & others


bodies = st.integers(0, 5)
events = st.lists(
    st.one_of(st.tuples(st.just("crash"), st.frozensets(bodies)), st.tuples(st.just("served"), bodies)), max_size=40
)


@given(events)
def test_only_what_two_crashes_saw_and_nobody_served_between_is_ever_refused(story: list[tuple[str, object]]) -> None:
    policy = Quarantine()
    seen = dict.fromkeys(range(6), 0)
    for now, (what, which) in enumerate(story):
        before = {body for body in seen if policy.standing(body, now) is REFUSED}
        if what == "served":
            assert isinstance(which, int)
            policy.served(which)
            seen[which] = 0
        else:
            assert isinstance(which, frozenset)
            likely = policy.suspects(which, now)
            refused = policy.crashed(which, now)
            for body in which:
                seen[body] += 1
            assert (refused is not None) == (likely == 1)  # what the supervisor names is what is refused
            assert refused is None or seen[refused] == max(seen[body] for body in which)
        after = {body for body in seen if policy.standing(body, now) is REFUSED}
        assert len(after - before) <= 1
        for body, crashes in seen.items():
            standing = policy.standing(body, now)
            assert standing in {0: {FREE}, 1: {SUSPECT}}.get(crashes, {ALONE, REFUSED})
