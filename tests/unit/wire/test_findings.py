from __future__ import annotations

import json

import pytest

from appliance.samples import Boot, Ended, Finding, Line, Milestone, Notice, OomKill, Said, StateFile, Xid
from appliance.wire.findings import Reader
from tests.support.timelines import JIT, SHM_WAIT, start_lines

UNIT = "llm-engine@chat.service"
MAIN = f"{UNIT}: Main process exited, code="
LOST = "NVRM: Xid (PCI:0000:65:00): 79, GPU lost"
OOM = "Out of memory: Killed process 7 (VLLM::Worker) x"
CORE = "(EngineCore pid=7) INFO 11-29 11:50:00 [x.py:1] "


def found(msg: str, src: str = "journal", reader: Reader | None = None, **more: str) -> list[Finding]:
    return list((reader or Reader()).read(Line(t=1.0, src=src, msg=msg, **more)))


@pytest.mark.parametrize(
    ("msg", "src", "finding"),
    [
        (f"{CORE}vLLM is using nccl==2.28.9", "journal", Milestone(t=1.0, phase="starting", joining=True)),
        (f"{CORE}Starting to load model m...", "journal", Milestone(t=1.0, phase="loading")),
        ("INFO:     Application startup complete.", "journal", Milestone(t=1.0, phase="serving")),
        (CORE + SHM_WAIT, "journal", Notice(t=1.0, kind="shm-wait")),
        (CORE + JIT, "journal", Notice(t=1.0, kind="jit")),
        (f"{CORE}something else", "journal", Notice(t=1.0, kind="line")),
        (LOST, "kernel", Xid(t=1.0, number=79, pci="0000:65:00", detail="GPU lost")),
        (OOM, "kernel", OomKill(t=1.0, scope="global", pid=7, process="VLLM::Worker")),
        (f"{MAIN}exited, status=71/n/a", "systemd", Ended(t=1.0, result="exit-code", code=1, status=71)),
        (f"{MAIN}killed, status=9/KILL", "systemd", Ended(t=1.0, result="signal", code=2, status=9)),
        (f"{UNIT}: Failed with result 'oom-kill'.", "systemd", Ended(t=1.0, result="oom-kill")),
        (f"{UNIT}: start operation timed out. Terminating.", "systemd", Ended(t=1.0, result="timeout")),
        (f"{UNIT}: Deactivated successfully.", "systemd", Milestone(t=1.0, phase="exited")),
        (f"Stopping {UNIT} - vLLM engine chat...", "systemd", Milestone(t=1.0, phase="stopping")),
        (f"Starting {UNIT} - vLLM engine chat...", "systemd", Milestone(t=1.0, phase="starting")),
    ],
)  # fmt: skip
def test_what_a_line_tells(msg: str, src: str, finding: Finding) -> None:
    assert found(msg, src) == [finding]


@pytest.mark.parametrize(
    ("msg", "src"),
    [
        (LOST, "systemd"),  # no kernel line
        ("llm-gateway.service: Main process exited, code=killed, status=9/KILL", "systemd"),
        ("something", "kernel"),
    ],
)
def test_what_tells_nothing_of_the_engine(msg: str, src: str) -> None:
    assert found(msg, src) == []


def test_an_engines_own_line_is_no_kernel_line() -> None:
    assert found(LOST) == [Notice(t=1.0, kind="line")]


def test_another_units_lines_are_not_ours() -> None:
    reader = Reader(UNIT)
    other = "llm-engine@embed.service"
    assert found(f"{CORE}x", reader=reader, unit=other) == []
    assert found(f"{other}: Main process exited, code=exited, status=71/n/a", "systemd", reader) == []
    assert found(f"{CORE}x", reader=reader, unit=UNIT) == [Notice(t=1.0, kind="line")]


def test_a_line_that_is_said_again_is_no_sign_of_life() -> None:
    reader = Reader()
    assert len(found(f"{CORE}waiting", reader=reader)) == 1
    assert found(f"{CORE}waiting", reader=reader) == []


def test_a_burst_of_one_fault_is_one_finding() -> None:
    reader = Reader()
    burst = [found("NVRM: Xid (PCI:0000:65:00): 13, Graphics SM Warp Exception", "kernel", reader) for _ in range(8)]
    assert [len(each) for each in burst] == [1] + [0] * 7


def test_the_cause_that_a_log_gives_is_told_once_and_refined() -> None:
    reader, told = Reader(), []
    lines = [
        *start_lines(),
        "(EngineCore pid=7) ERROR 11-29 11:50:00 [x.py:1] ValueError: No available memory for the cache blocks. Try",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    for line in lines:
        told += [each for each in found(line, reader=reader) if isinstance(each, Said)]
    assert [said.cause for said in told] == ["kv-none"]


def test_a_new_run_forgets_the_log_of_the_last() -> None:
    reader = Reader()
    for line in [*start_lines(), "(EngineCore pid=7) ERROR 11-29 11:50:00 [x.py:1] CUDA out of memory"]:
        found(line, reader=reader)
    for line in start_lines():
        found(line, reader=reader)
    end = found(f"{MAIN}exited, status=72/n/a", "systemd", reader)
    assert [type(each) for each in end] == [Ended]


@pytest.mark.parametrize(
    ("path", "value", "finding"),
    [
        ("/run/x/state.json", "loading", Milestone(t=1.0, phase="loading")),
        ("state.json", json.dumps({"phase": "serving", "start": "a1"}), Milestone(t=1.0, phase="serving", start="a1")),
        ("state.json", "{broken", None),
        ("state.json", json.dumps({"phase": "dancing"}), None),
        ("fleet.json", "serving", None),
    ],
)
def test_the_state_file_tells_the_phase(path: str, value: str, finding: Finding | None) -> None:
    assert Reader().read(StateFile(t=1.0, path=path, value=value)) == (() if finding is None else (finding,))


@pytest.mark.parametrize(("words", "clean"), [("Reached target Power-Off.", True), ("Started cron.service", False)])
def test_a_boot_is_clean_when_the_machine_was_shut_down(words: str, clean: bool) -> None:
    reader = Reader()
    assert found(words, "systemd", reader, boot="a") == []
    assert found("Linux version 6.1", "kernel", reader, boot="b") == [Boot(t=1.0, clean=clean)]
