"""What trials amount to: whether pairs of GPUs work together, what an engine needs for it, how fast a disk is.

NCCL works, copies arrive right       nothing
NCCL works, copies do not             disable_custom_all_reduce: vLLM's own all-reduce copies from GPU to GPU
NCCL works without P2P alone          NCCL_P2P_DISABLE and disable_custom_all_reduce
NCCL does not work at all             no setting helps: replicas on single GPUs, and mend the host
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from appliance.gpufacts import COPY, NCCL, WITHOUT_P2P, ReadSpeed, Tried
from appliance.hostfacts import NotKnown
from appliance.policy.finding import Finding, Verdict
from appliance.quantity import UNKNOWN, format_duration, format_size

LINKS, DISK = "links", "disk-speed"
WORKS = "works"
WRITE = "llm-appliance doctor --deep --write writes it; then llm-appliance apply"
SLOW_DISK = 150 << 20  # bytes a second: below it a model of 30 GiB loads for more than three minutes
SMALL = 64 << 20  # a file that says little of its disk


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine is to be started with so that its GPUs work together."""

    engine: str
    env: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """As it is written in the file."""
        env = [f'env {name} = "{value}"' for name, value in self.env.items()]
        return f"{self.engine}: " + ", ".join([*env, *(f"{name} = true" for name in self.flags)])


def links(tried: Sequence[Tried], needed: Sequence[Setting], *, settled: bool) -> list[Finding]:
    """One finding for each kind of outcome, with its pairs, and one for each setting that an engine lacks.

    `settled`: the engines have all settings that help, so what is found is a warning.
    """
    by_kind: dict[tuple[Verdict, str, str], list[str]] = {}
    speeds = []
    for pair, ways in _by_pair(tried).items():
        verdict, evidence, remedy = _judged(ways, settled)
        by_kind.setdefault((verdict, evidence, remedy), []).append(f"{pair[0]}-{pair[1]}")
        speed = ways[NCCL].bytes_s
        if verdict is Verdict.OK and speed is not UNKNOWN:
            speeds.append(speed)
    found = []
    for (verdict, evidence, remedy), pairs in by_kind.items():
        rate = f", {format_size(int(min(speeds)))}/s and more" if verdict is Verdict.OK and speeds else ""
        found.append(Finding(LINKS, verdict, f"GPUs {', '.join(pairs)}: {evidence}{rate}", remedy))
    lacking = (Finding(LINKS, Verdict.FAIL, f"needed by {each.words}", WRITE) for each in needed)
    return [*found, *lacking]


def _judged(ways: Mapping[str, Tried], settled: bool) -> tuple[Verdict, str, str]:
    mended = Verdict.WARN if settled else Verdict.FAIL
    nccl, copy, without = ways[NCCL], ways.get(COPY), ways.get(WITHOUT_P2P)
    if nccl.outcome == WORKS:
        if copy is None or copy.outcome == WORKS:
            return Verdict.OK, "all-reduce works", ""
        evidence = f"NCCL works, a copy from GPU to GPU {_words(copy)}"
        return mended, evidence, "set disable_custom_all_reduce = true; look at ACS and the IOMMU"
    evidence = f"all-reduce {_words(nccl)}"
    if without is not None and without.outcome == WORKS:
        remedy = "set NCCL_P2P_DISABLE and disable_custom_all_reduce; then turn ACS or the IOMMU off and try again"
        return mended, f"{evidence}, and works without P2P", remedy
    return Verdict.FAIL, f"{evidence}, also without P2P", "run replicas on single GPUs; journalctl -k -g 'Xid|AER'"


def _words(tried: Tried) -> str:
    told = {"hangs": "hangs", "wrong": "gives wrong numbers", "fails": "fails"}[tried.outcome]
    return f"{told} ({tried.detail})" if tried.outcome == "fails" and tried.detail else told


def settings(tried: Sequence[Tried], spans: Mapping[str, tuple[int, ...]]) -> tuple[Setting, ...]:
    """What each engine needs; `spans` are the GPUs of each that uses several (by the engine's name)."""
    made = []
    for engine, gpus in spans.items():
        mine = [ways for pair, ways in _by_pair(tried).items() if set(pair) <= set(gpus)]
        without = any(_needs_no_p2p(ways) for ways in mine)
        bad_copy = any(COPY in ways and ways[COPY].outcome != WORKS for ways in mine)
        if without or bad_copy:
            env = {"NCCL_P2P_DISABLE": "1"} if without else {}
            made.append(Setting(engine, env, {"disable_custom_all_reduce": True}))
    return tuple(made)


def _needs_no_p2p(ways: Mapping[str, Tried]) -> bool:
    return ways[NCCL].outcome != WORKS and WITHOUT_P2P in ways and ways[WITHOUT_P2P].outcome == WORKS


def _by_pair(tried: Iterable[Tried]) -> dict[tuple[int, int], dict[str, Tried]]:
    found: dict[tuple[int, int], dict[str, Tried]] = {}
    for each in tried:
        found.setdefault(each.pair, {})[each.way] = each
    return {pair: ways for pair, ways in found.items() if NCCL in ways}


def disk(speed: ReadSpeed | NotKnown, model: str, size: int) -> Finding:
    """How long the disk alone makes a model's start."""
    if isinstance(speed, NotKnown):
        verdict = Verdict.FAIL if speed.late else Verdict.UNKNOWN
        told = f"reading {model} does not come to an end" if speed.late else f"not known: {speed.why}"
        return Finding(DISK, verdict, told, "dmesg says whether the disk has failed" if speed.late else "")
    if speed.read < SMALL or speed.seconds <= 0:
        return Finding(DISK, Verdict.SKIPPED, f"{model} is too small ({format_size(speed.read)}) to tell")
    rate = speed.read / speed.seconds
    told = f"{format_size(int(rate))}/s; {model} ({format_size(size)}) is read in {format_duration(size / rate)}"
    told += "" if speed.direct else " (through the page cache, which flatters)"
    if rate < SLOW_DISK:
        return Finding(DISK, Verdict.WARN, told, "put the model on a faster disk: NVMe reads ten times as fast")
    return Finding(DISK, Verdict.OK, told)
