"""What a start does, as a table over what is on the disk and what is wanted."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.host.runtimes import Installed
from appliance.runtime.decide import Build, Keep, Wanted, decide

WANTED = Wanted("0.32.0", "cpu", "3.11", locks=("lock", "generic"), pinned=False)
GOOD = Installed("0.32.0-cpu", "/x", "0.32.0", "cpu", "3.11", "lock", 1, complete=True, usable=True, current=True)
IDLE = dataclasses.replace(GOOD, current=False)
OLD = dataclasses.replace(GOOD, name="0.31.0-cpu", version="0.31.0", lock="older")


def but(one: Installed, **changes: object) -> Installed:
    return dataclasses.replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "chosen", "wanted", "expected"),
    [
        ([], None, {}, ("build", "0.32.0-cpu", "not built yet")),
        ([GOOD], None, {}, ("keep", "0.32.0-cpu", "complete")),
        ([but(GOOD, lock="generic")], None, {}, ("keep", "0.32.0-cpu", "complete")),
        ([IDLE], None, {}, ("keep", "0.32.0-cpu", "complete")),  # a crash between `.complete` and the switch
        ([but(IDLE, complete=False)], None, {}, ("build", "0.32.0-cpu", "not built yet")),
        # the key differs: a sibling, because engines still run from the first
        ([but(GOOD, lock="other")], None, {}, ("build", "0.32.0-cpu-2", "this release has another lock")),
        ([GOOD], None, {"python": "3.13"}, ("build", "0.32.0-cpu-2", "the host's Python is 3.13 now")),
        ([but(GOOD, usable=False)], None, {}, ("build", "0.32.0-cpu-2", "the Python it was built with is gone")),
        ([but(GOOD, lock="other"), but(IDLE, name="0.32.0-cpu-2")], None, {}, ("keep", "0.32.0-cpu-2", "complete")),
        ([GOOD], None, {"device": "cuda"}, ("build", "0.32.0-cuda", "not built yet")),
        # a package upgrade does not replace what works
        ([OLD], None, {}, ("keep", "0.31.0-cpu", "active; vLLM 0.32.0 is there for runtime install")),
        ([OLD, IDLE], None, {}, ("keep", "0.31.0-cpu", "active; vLLM 0.32.0 is there for runtime install")),
        ([OLD], None, {"pinned": True}, ("build", "0.32.0-cpu", "not built yet")),
        ([OLD], None, {"requested": True}, ("build beside", "0.32.0-cpu", "asked for by runtime install")),
        ([], None, {"requested": True}, ("build", "0.32.0-cpu", "asked for by runtime install")),
        ([but(OLD, usable=False)], None, {}, ("build", "0.32.0-cpu", "not built yet")),
        # the operator's choice
        ([but(OLD, current=False), GOOD], "0.31.0-cpu", {}, ("keep", "0.31.0-cpu", "chosen by the operator")),
        ([OLD, IDLE], "0.32.0-cpu", {}, ("keep", "0.32.0-cpu", "chosen by the operator")),
        ([OLD, IDLE], "0.31.0-cpu", {"pinned": True}, ("keep", "0.32.0-cpu", "complete")),
        ([but(OLD, usable=False, current=False), GOOD], "0.31.0-cpu", {}, ("keep", "0.32.0-cpu", "complete")),
        ([GOOD], "gone", {}, ("keep", "0.32.0-cpu", "complete")),
        # a version of another release can be kept, whatever its lock
        ([OLD], None, {"version": "0.31.0", "locks": (), "pinned": True}, ("keep", "0.31.0-cpu", "complete")),
        ([GOOD], None, {"version": "0.31.0", "locks": (), "pinned": True}, ("build", "0.31.0-cpu", "not built yet")),
    ],
)
def test_table(
    found: list[Installed], chosen: str | None, wanted: dict[str, object], expected: tuple[str, str, str]
) -> None:
    todo = decide(dataclasses.replace(WANTED, **wanted), found, chosen)  # type: ignore[arg-type]
    what = "keep" if isinstance(todo, Keep) else "build" if todo.activate else "build beside"
    assert (what, todo.name, todo.reason) == expected


runtimes = st.lists(
    st.builds(
        Installed,
        st.sampled_from(["0.32.0-cpu", "0.32.0-cpu-2", "0.31.0-cpu", "0.32.0-cuda"]),
        st.just("/x"),
        st.sampled_from(["0.32.0", "0.31.0"]),
        st.sampled_from(["cpu", "cuda"]),
        st.sampled_from(["3.11", "3.13"]),
        st.sampled_from(["lock", "other"]),
        st.none(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    unique_by=lambda one: one.name,
)


@given(runtimes, st.sampled_from([None, "0.32.0-cpu", "0.31.0-cpu"]), st.booleans(), st.booleans())
def test_laws(found: list[Installed], chosen: str | None, pinned: bool, requested: bool) -> None:
    """What is kept works; a build never takes the place of something complete or active; a build ends the need."""
    wanted = dataclasses.replace(WANTED, pinned=pinned, requested=requested)
    todo = decide(wanted, found, chosen)
    by_name = {one.name: one for one in found}
    if isinstance(todo, Keep):
        kept = by_name[todo.name]
        assert kept.complete and kept.usable and kept.python == "3.11" and kept.device == "cpu"
        return
    assert isinstance(todo, Build)
    assert todo.name not in by_name or not (by_name[todo.name].complete or by_name[todo.name].current)
    built = Installed(todo.name, "/x", "0.32.0", "cpu", "3.11", "lock", 1, True, True, todo.activate)
    rest = [but(one, current=one.current and not todo.activate) for one in found if one.name != todo.name]
    assert isinstance(decide(wanted, [*rest, built], chosen), Keep)
