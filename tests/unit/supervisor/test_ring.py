from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.samples import Gpu, Health, Line, Metrics, Nvml, Sample
from appliance.supervisor.ring import Ring, size_of


def test_the_oldest_go_by_age() -> None:
    ring = Ring(kept_s=10.0)
    for t in range(30):
        ring.add(Health(t=float(t)), float(t))
    assert [sample.t for sample in ring.after(0)[0]] == [float(t) for t in range(19, 30)]


def test_the_oldest_go_by_number_and_by_size() -> None:
    few, small = Ring(most=3), Ring(most_bytes=3000)
    for t in range(10):
        few.add(Health(t=float(t)), float(t))
        small.add(Line(t=float(t), src="kernel", msg="x" * 1000), float(t))
    assert [sample.t for sample in few.after(0)[0]] == [7.0, 8.0, 9.0]
    assert [sample.t for sample in small.after(0)[0]] == [8.0, 9.0]


def test_one_sample_beyond_every_bound_leaves_nothing() -> None:
    ring = Ring(most_bytes=10)
    ring.add(Health(t=1.0), 1.0)
    assert ring.after(0) == ([], 1)


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 8))
def test_a_reader_misses_and_repeats_nothing_that_is_kept(pauses: list[int], most: int) -> None:
    """Whoever reads at any time gets each sample once, but for those that went meanwhile."""
    ring, place, seen, t = Ring(most=most), 0, [], 0
    for pause in pauses:
        for _ in range(pause):
            ring.add(Health(t=float(t)), float(t))
            t += 1
        new, place = ring.after(place)
        assert [sample.t for sample in new] == [float(each) for each in range(t - min(pause, most), t)]
        seen += new
    assert len(seen) == len({sample.t for sample in seen}) and place == t


def test_a_reader_of_a_ring_before_this_one_gets_all() -> None:
    ring = Ring()
    for t in range(3):
        ring.add(Health(t=float(t)), float(t))
    assert [sample.t for sample in ring.after(700)[0]] == [0.0, 1.0, 2.0]


def test_sizes_follow_what_is_in_them() -> None:
    small: Sample = Health(t=1.0)
    for large in (
        Line(t=1.0, src="kernel", msg="x" * 100),
        Metrics(t=1.0, values={"a": 1.0, "b": 2.0}),
        Nvml(t=1.0, gpus=(Gpu(),)),
    ):
        assert size_of(large) > size_of(small)
