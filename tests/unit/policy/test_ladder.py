from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.model import Restart
from appliance.policy.causes import CAUSES, Remedy
from appliance.policy.failure import Failure
from appliance.policy.ladder import (
    CLIMB_MAX_S,
    CLIMB_S,
    ENV,
    FLAGS,
    HANG_S,
    REPEAT_S,
    SEQS_MIN,
    TOKENS_MIN,
    UTILISATION_MAX,
    UTILISATION_MIN,
    Facts,
    Ladder,
    Place,
    answered,
    climbed,
    kept,
)
from appliance.quantity import UNKNOWN, Maybe

NOW = 1_000_000.0
PLACE = Place("d1", "0.32.0-cuda", ("GPU-1",))
PAIR = Place("d1", "0.32.0-cuda", ("GPU-1", "GPU-2"))
LIMITS = Restart()
OFF = Restart(oom_ladder=False)
UTILISATION, SEQS, TOKENS = "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"


def facts(place: Place = PLACE, **more: object) -> Facts:
    return Facts(place=place, cuda=True, **more)  # type: ignore[arg-type]


def failed(cause: str) -> Failure:
    return Failure(cause, CAUSES[cause].remedy, "it failed")


def descent(cause: str, start: Facts, times: int, limits: Restart = LIMITS) -> tuple[list[dict[str, object]], Remedy]:
    """What each of so many failures in a row changes, until a remedy that is no change ends it."""
    ladder, before = Ladder(), [(NOW - 1.0, cause)]
    changes: list[dict[str, object]] = []
    for number in range(times):
        now = NOW + 60.0 * number
        answer = answered(failed(cause), ladder, start, limits, before=before, now=now)
        if answer.failure.remedy is not Remedy.RESTART_CHANGED:
            return changes, answer.failure.remedy
        ladder = answer.ladder
        changes.append({**ladder.rungs[-1].flags, **ladder.rungs[-1].env})
        before.append((now, cause))
    return changes, Remedy.RESTART_CHANGED


@pytest.mark.parametrize(
    ("cause", "given_", "changes", "last"),
    [
        ("kv-none", {}, [{UTILISATION: 0.95}], Remedy.HOLD),
        ("kv-none", {UTILISATION: 0.85}, [{UTILISATION: 0.88}], Remedy.HOLD),
        ("kv-none", {UTILISATION: 0.93}, [{UTILISATION: 0.95}], Remedy.HOLD),
        ("kv-none", {UTILISATION: 0.94}, [], Remedy.HOLD),
        ("kv-none", {UTILISATION: 0.97}, [], Remedy.HOLD),
        ("cuda-oom-warmup", {}, [{SEQS: 128}, {UTILISATION: 0.9}], Remedy.HOLD),
        ("cuda-oom-warmup", {SEQS: 1024, UTILISATION: 0.9}, [{SEQS: 512}, {UTILISATION: 0.88}], Remedy.HOLD),
        ("cuda-oom-warmup", {SEQS: 16, UTILISATION: 0.81}, [], Remedy.HOLD),
        ("cuda-oom-serving", {},
         [{UTILISATION: 0.89}, {TOKENS: 1024}, {UTILISATION: 0.86}, {TOKENS: 512}, {SEQS: 128},
          {"enforce_eager": True}], Remedy.RESTART),
        ("cuda-oom-serving", {UTILISATION: 0.81, "enable_chunked_prefill": False, "enforce_eager": True},
         [{SEQS: 128}, {SEQS: 64}, {SEQS: 32}, {SEQS: 16}], Remedy.RESTART),
        ("kv-too-small", {}, [], Remedy.HOLD),
        ("cuda-oom-load", {}, [], Remedy.HOLD),
        ("config-error", {}, [], Remedy.HOLD),
        ("gpu-memory-taken", {}, [], Remedy.WAIT),
        ("engine-died", {}, [], Remedy.RESTART),
    ],
)  # fmt: skip
def test_the_steps_of_each_cause(
    cause: str, given_: dict[str, object], changes: list[dict[str, object]], last: Remedy
) -> None:
    assert descent(cause, facts(flags=given_), 12) == (changes, last)
    assert descent(cause, facts(flags=given_), 12, OFF) == ([], CAUSES[cause].remedy)


@pytest.mark.parametrize("cause", ["cuda-oom-warmup", "cuda-oom-serving"])
@pytest.mark.parametrize(
    ("before", "steps"),
    [([], False), ([(NOW - REPEAT_S, "cause")], False), ([(NOW - 60.0, "engine-died")], False),
     ([(NOW - REPEAT_S + 1.0, "cause")], True)],
)  # fmt: skip
def test_memory_that_ran_out_once_may_not_again(cause: str, before: list[tuple[float, str]], steps: bool) -> None:
    named = [(at, cause if word == "cause" else word) for at, word in before]
    answer = answered(failed(cause), Ladder(), facts(), LIMITS, before=named, now=NOW)
    assert bool(answer.ladder.rungs) is steps


@pytest.mark.parametrize(
    "start",
    [facts(neighbours=True), Facts(place=PLACE, cuda=False), Facts(cuda=True),
     facts(flags={"kv_cache_memory_bytes": 1}), facts(flags={UTILISATION: "0.9"})],
    ids=["a neighbour", "a CPU", "nobody knows what was started", "the cache has its own size", "not a number"],
)  # fmt: skip
def test_more_memory_is_not_taken_where_it_is_not_ours(start: Facts) -> None:
    assert descent("kv-none", start, 3) == ([], Remedy.HOLD)


def test_opposite_steps_are_never_taken_in_turn() -> None:
    less = answered(failed("cuda-oom-serving"), Ladder(), facts(), LIMITS, before=[(NOW, "cuda-oom-serving")], now=NOW)
    assert UTILISATION in less.ladder.flags
    none = answered(failed("kv-none"), less.ladder, facts(), LIMITS, before=[], now=NOW)
    assert (none.failure.remedy, none.ladder) == (Remedy.HOLD, less.ladder)
    more = answered(failed("kv-none"), Ladder(), facts(), LIMITS, before=[], now=NOW)
    held = answered(failed("cuda-oom-warmup"), more.ladder, facts(), LIMITS, before=[(NOW, "cuda-oom-warmup")], now=NOW)
    assert held.failure.remedy is Remedy.HOLD


def test_a_broken_compile_cache_is_moved_away_once() -> None:
    broken = facts(hint="compile-cache")
    first = answered(failed("start-failed"), Ladder(), broken, LIMITS, before=[], now=NOW)
    assert first.failure.remedy is Remedy.RESTART_CHANGED and first.ladder.rungs[-1].caches
    assert "moved away" in first.failure.reason and not first.ladder.told  # it is done once, and over
    second = answered(failed("start-failed"), first.ladder, broken, LIMITS, before=[], now=NOW)
    assert (second.failure.remedy, second.ladder) == (Remedy.RESTART, first.ladder)


@pytest.mark.parametrize(
    ("least", "hint", "length"),
    [
        (4096, "max-model-len=6000", 5888),
        (5990, "max-model-len=6000", 5990),  # rounding never goes below it
        (6000, "max-model-len=6000", 6000),
        (6001, "max-model-len=6000", None),
        (0, "max-model-len=6000", None),
        (4096, "", None),
        (4096, "max-model-len=many", None),
    ],
)
def test_a_context_is_lowered_once_to_what_fits_where_its_operator_allows(
    least: int, hint: str, length: int | None
) -> None:
    start = facts(min_model_len=least, hint=hint, flags={"max_model_len": 8192})
    if length is None:
        assert descent("kv-too-small", start, 3) == ([], Remedy.HOLD)
        return
    assert descent("kv-too-small", start, 3) == ([{"max_model_len": length}], Remedy.HOLD)
    first = answered(failed("kv-too-small"), Ladder(), start, LIMITS, before=[], now=NOW)
    assert first.ladder.told == f"max_model_len 8192 -> {length} (kv-too-small)"


CUSTOM = {"disable_custom_all_reduce": True}
DEBUG = {"NCCL_DEBUG": "INFO"}


def hangs(count: int) -> list[tuple[float, str]]:
    return [(NOW - 60.0 * (number + 1), "hang-kernel") for number in range(count)]


@pytest.mark.parametrize(
    ("cause", "count", "start", "change", "remedy"),
    [
        ("hang-collective", 0, facts(PAIR), {}, Remedy.RESTART),
        ("hang-collective", 1, facts(PAIR), DEBUG, Remedy.RESTART_CHANGED),
        ("hang-collective", 1, facts(PAIR, env=DEBUG), {}, Remedy.RESTART),
        ("hang-collective", 2, facts(PAIR), CUSTOM, Remedy.RESTART_CHANGED),
        ("hang-collective", 2, facts(PAIR, nvlink=True), CUSTOM, Remedy.RESTART_CHANGED),
        ("hang-collective", 2, facts(PAIR, nvlink=False), {"NCCL_P2P_DISABLE": "1"}, Remedy.RESTART_CHANGED),
        ("hang-collective", 2, facts(PAIR, flags=CUSTOM), {"NCCL_P2P_DISABLE": "1"}, Remedy.RESTART_CHANGED),
        ("hang-collective", 2, facts(PAIR, flags=CUSTOM, nvlink=True), {"NCCL_CUMEM_ENABLE": "0"},
         Remedy.RESTART_CHANGED),
        ("hang-collective", 3, facts(PAIR), {}, Remedy.HOLD),
        ("hang-kernel", 1, facts(), {}, Remedy.RESTART),
        ("hang-kernel", 2, facts(), {"enforce_eager": True}, Remedy.RESTART_CHANGED),
        ("hang-kernel", 2, facts(flags={"enforce_eager": True}), {}, Remedy.RESTART),
        ("hang-scheduler", 2, facts(PAIR), {}, Remedy.RESTART),
        ("hang-scheduler", 3, facts(PAIR), {}, Remedy.HOLD),
        ("hang-startup", 3, Facts(), {}, Remedy.HOLD),
        ("hang-init", 0, facts(PAIR), {}, Remedy.RESTART),
        ("hang-init", 1, facts(PAIR), {}, Remedy.REBOOT),
    ],
)  # fmt: skip
def test_hangs(cause: str, count: int, start: Facts, change: dict[str, object], remedy: Remedy) -> None:
    answer = answered(failed(cause), Ladder(), start, LIMITS, before=hangs(count), now=NOW)
    assert ({**answer.ladder.flags, **answer.ladder.env}, answer.failure.remedy) == (change, remedy)
    off = answered(failed(cause), Ladder(), start, OFF, before=hangs(count), now=NOW)
    assert off.ladder.rungs == ()
    assert (off.failure.remedy is remedy) or remedy is Remedy.RESTART_CHANGED


def test_hangs_of_yesterday_do_not_count() -> None:
    old = [(NOW - HANG_S, "hang-kernel")] * 5
    answer = answered(failed("hang-kernel"), Ladder(), facts(), LIMITS, before=old, now=NOW)
    assert answer.failure.remedy is Remedy.RESTART


def test_what_is_changed_is_told() -> None:
    answer = answered(failed("kv-none"), Ladder(), facts(), LIMITS, before=[], now=NOW)
    assert "it starts with a change: gpu_memory_utilization 0.92 -> 0.95" in answer.failure.reason
    assert answer.ladder.told == "gpu_memory_utilization 0.92 -> 0.95 (kv-none)"
    held = answered(failed("hang-scheduler"), answer.ladder, facts(), LIMITS, before=hangs(3), now=NOW)
    assert "in force: gpu_memory_utilization 0.92 -> 0.95" in held.failure.reason


@pytest.mark.parametrize(
    "place", [replace(PLACE, digest="d2"), replace(PLACE, runtime="0.33.0-cuda"), replace(PLACE, gpus=("GPU-9",))]
)
def test_another_place_knows_nothing_of_it(place: Place) -> None:
    stands = answered(failed("kv-none"), Ladder(), facts(), LIMITS, before=[], now=NOW).ladder
    assert kept(stands, facts()) == stands
    assert kept(stands, Facts(place=Place("d2"))) == stands  # nobody says where
    assert kept(stands, facts(place)) == Ladder(place)
    assert kept(Ladder(), facts(place)) == Ladder()


class TestTheWayUp:
    stands = answered(failed("kv-none"), Ladder(), facts(), LIMITS, before=[], now=NOW).ladder

    @pytest.mark.parametrize(
        ("ready", "troubles", "after_s", "climbs"),
        [
            (NOW + 60.0, [], CLIMB_S + 60.0, True),
            (NOW + 60.0, [], CLIMB_S + 59.0, False),
            (UNKNOWN, [], CLIMB_S * 9, False),
            (NOW + 60.0, [(NOW + 100.0, "kv-none")], CLIMB_S + 60.0, False),
            (NOW + 60.0, [(NOW + 100.0, "engine-died")], CLIMB_S + 60.0, True),
        ],
    )
    def test_quiet_service_takes_the_last_rung_off(
        self, ready: Maybe[float], troubles: list[tuple[float, str]], after_s: float, climbs: bool
    ) -> None:
        up = climbed(self.stands, ready=ready, troubles=troubles, now=NOW + after_s)
        assert (up is not None) is climbs
        if up is not None:
            assert (up.rungs, up.dropped, up.place) == ((), self.stands.rungs[-1], PLACE)

    def test_a_trial_that_fails_brings_it_back_and_waits_longer(self) -> None:
        ladder, now = self.stands, NOW
        for trial in range(1, 8):
            wait_s = min(CLIMB_S * 2.0 ** (trial - 1), CLIMB_MAX_S)
            assert climbed(ladder, ready=now, troubles=[], now=now + wait_s - 1.0) is None
            now += wait_s
            up = climbed(ladder, ready=now - wait_s, troubles=[], now=now)
            assert up is not None
            answer = answered(failed("kv-none"), up, facts(), LIMITS, before=[], now=now)
            ladder = answer.ladder
            assert answer.failure.remedy is Remedy.RESTART_CHANGED
            assert (ladder.flags, ladder.trials, ladder.dropped) == (self.stands.flags, trial, None)

    def test_a_trial_that_succeeds_forgets_it(self) -> None:
        up = climbed(self.stands, ready=NOW, troubles=[], now=NOW + CLIMB_S)
        assert up is not None
        later = NOW + 3 * CLIMB_S
        assert climbed(up, ready=NOW, troubles=[], now=later) is None  # it has not been restarted since
        assert climbed(up, ready=later, troubles=[], now=later + CLIMB_S) == Ladder(PLACE)


@given(
    st.lists(st.tuples(st.sampled_from([word for word in CAUSES if CAUSES[word].remedy is not Remedy.NONE]),
                       st.floats(1.0, REPEAT_S)), max_size=60),
    st.fixed_dictionaries({}, optional={UTILISATION: st.floats(0.1, 1.0), SEQS: st.integers(1, 4096),
                                        TOKENS: st.integers(1, 1 << 17), "enforce_eager": st.booleans()}),
    st.booleans(),
)  # fmt: skip
def test_floors_ceilings_and_an_end(script: list[tuple[str, float]], flags: dict[str, object], pair: bool) -> None:
    """Whatever fails in whatever order: values stay within their bounds, nothing else is touched, and it ends."""
    start, ladder, now = facts(PAIR if pair else PLACE, flags=flags), Ladder(), NOW
    before: list[tuple[float, str]] = []
    for cause, gap in script:
        now += gap
        answer = answered(failed(cause), ladder, start, LIMITS, before=before, now=now)
        changed = answer.failure.remedy is Remedy.RESTART_CHANGED
        assert len(answer.ladder.rungs) == len(ladder.rungs) + changed
        ladder = answer.ladder
        before.append((now, cause))
    assert FLAGS.issuperset(ladder.flags) and ENV.issuperset(ladder.env)
    assert len(ladder.rungs) <= 20
    for rung in ladder.rungs:
        value = float(str(rung.flags.get(UTILISATION, UTILISATION_MIN)))
        assert (value <= UTILISATION_MAX + 1e-9) if rung.cause == "kv-none" else (value >= UTILISATION_MIN - 1e-9)
        assert int(str(rung.flags.get(SEQS, SEQS_MIN))) >= SEQS_MIN
        assert int(str(rung.flags.get(TOKENS, TOKENS_MIN))) >= TOKENS_MIN
