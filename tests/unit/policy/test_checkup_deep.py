from __future__ import annotations

import pytest

from appliance.gpufacts import ReadSpeed, Tried
from appliance.hostfacts import NotKnown
from appliance.policy.checkup import deep
from appliance.policy.finding import Verdict

GIB = 1 << 30


def tried(nccl: str = "works", copy: str = "works", without: str = "", pair: tuple[int, int] = (0, 1)) -> list[Tried]:
    ways = [("nccl", nccl), ("copy", copy), ("nccl-without-p2p", without)]
    return [Tried(pair=pair, way=way, outcome=outcome, bytes_s=20e9) for way, outcome in ways if outcome]


NO_P2P = {"NCCL_P2P_DISABLE": "1"}
NO_OWN = {"disable_custom_all_reduce": True}


@pytest.mark.parametrize(
    ("trials", "verdict", "words", "env", "flags"),
    [
        (tried(), Verdict.OK, "GPUs 0-1: all-reduce works, 18.6 GiB/s", {}, {}),
        (tried(copy="wrong"), Verdict.FAIL, "copy from GPU to GPU gives wrong numbers", {}, NO_OWN),
        (tried(copy="hangs"), Verdict.FAIL, "hangs", {}, NO_OWN),
        (tried("hangs", "works", "works"), Verdict.FAIL, "all-reduce hangs, and works without P2P", NO_P2P, NO_OWN),
        (tried("wrong", "wrong", "works"), Verdict.FAIL, "gives wrong numbers, and works without P2P", NO_P2P, NO_OWN),
        (tried("fails", "works", "fails"), Verdict.FAIL, "also without P2P", {}, {}),
    ],
)
def test_pairs_and_settings(
    trials: list[Tried], verdict: Verdict, words: str, env: dict[str, str], flags: dict[str, object]
) -> None:
    (found,) = deep.links(trials, (), settled=False)
    assert found.verdict is verdict and words in found.evidence and bool(found.remedy) == (verdict is Verdict.FAIL)
    made = deep.settings(trials, {"chat": (0, 1), "other": (2, 3)})
    assert [(each.engine, dict(each.env), dict(each.flags)) for each in made] == (
        [("chat", env, flags)] if flags else []
    )


def test_pairs_of_one_kind_are_one_line() -> None:
    trials = [*tried(), *tried(pair=(2, 3)), *tried("hangs", "works", "works", pair=(0, 2))]
    found = deep.links(trials, (), settled=False)
    assert [one.evidence.partition(":")[0] for one in found] == ["GPUs 0-1, 2-3", "GPUs 0-2"]
    assert [each.engine for each in deep.settings(trials, {"a": (0, 1), "b": (0, 1, 2, 3)})] == ["b"]


def test_what_the_engines_are_set_for_already_is_a_warning() -> None:
    (found,) = deep.links(tried("hangs", "works", "works"), (), settled=True)
    assert found.verdict is Verdict.WARN
    _, lacking = deep.links(tried(copy="wrong"), (deep.Setting("chat", {}, NO_OWN),), settled=False)
    assert lacking.verdict is Verdict.FAIL and "needed by chat: disable_custom_all_reduce = true" in lacking.evidence
    assert "--write" in lacking.remedy


def test_how_a_setting_is_written() -> None:
    assert deep.Setting("chat", NO_P2P, NO_OWN).words == (
        'chat: env NCCL_P2P_DISABLE = "1", disable_custom_all_reduce = true'
    )


@pytest.mark.parametrize(
    ("speed", "verdict", "words"),
    [
        (ReadSpeed(path="/m", read=2 * GIB, seconds=1.0, direct=True), Verdict.OK, "is read in 15s"),
        (ReadSpeed(path="/m", read=2 * GIB, seconds=1.0, direct=False), Verdict.OK, "flatters"),
        (ReadSpeed(path="/m", read=GIB, seconds=10.0, direct=True), Verdict.WARN, "102.4 MiB/s"),
        (ReadSpeed(path="/m", read=4096, seconds=0.1, direct=True), Verdict.SKIPPED, "too small"),
        (NotKnown("late", late=True), Verdict.FAIL, "does not come to an end"),
        (NotKnown("permission denied"), Verdict.UNKNOWN, "permission denied"),
    ],
)
def test_disks(speed: ReadSpeed | NotKnown, verdict: Verdict, words: str) -> None:
    found = deep.disk(speed, "m", 30 * GIB)
    assert found.verdict is verdict and words in found.evidence
