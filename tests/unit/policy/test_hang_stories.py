"""The corpus of timelines through the whole fold: each kind of hang is found in time, no trap is taken for one."""

from __future__ import annotations

import pytest

from appliance.policy.causes import CAUSES
from appliance.policy.judgement import ACTIONS, VERDICTS, Judgement
from tests.support.hangstories import HANGS, judged, told
from tests.support.timelines import Scene
from tests.support.trapstories import TRAPS


def changes(name: str) -> list[Judgement]:
    found = list(judged(name))
    assert {judgement.verdict for judgement in found} <= set(VERDICTS)
    assert {judgement.action for judgement in found} <= set(ACTIONS)
    assert {judgement.cause for judgement in found} <= set(CAUSES)
    return found


def silent_from(scene: Scene) -> float:
    """The first silent moment: where the bytes stopped, or the last line of a start."""
    if scene.silent_since is not None:
        return scene.silent_since
    said = [line for line in scene.lines[1:] if line["src"] == "journal" and "shm_broadcast" not in line["msg"]]
    return float(said[-1]["t"])


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_found_in_time(name: str) -> None:
    _, cause, after_s = HANGS[name]
    scene, _, _ = told(name)
    found = next((judgement for judgement in changes(name) if judgement.verdict == "hung"), None)
    assert found is not None
    assert (found.cause, found.action) == (cause, "restart")
    begin = scene.lines[1]["t"] if name == "endless start" else silent_from(scene)
    assert after_s <= found.t - begin <= after_s + 2 * scene.interval
    assert found.reason and found.evidence


@pytest.mark.parametrize("name", TRAPS)
def test_what_looks_like_a_hang_is_none(name: str) -> None:
    cause = TRAPS[name].cause
    found = changes(name)
    assert {judgement.verdict for judgement in found} <= {"ok", "suspect", "unknown"}
    assert {judgement.action for judgement in found} <= {"none", "evidence"}
    assert not cause or cause in {judgement.cause for judgement in found}
