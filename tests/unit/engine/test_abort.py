from __future__ import annotations

from pathlib import Path

from appliance.engine.abort import ALL_S, EACH_S, Abort
from appliance.host.proc import Process

NOBODY = 2**22 + 1  # above the largest pid that the kernel gives: signals reach nobody
CORE, WORKER, API = (Process(NOBODY + n, 1, name, "S", 1.0) for n, name in enumerate(("core", "worker", "api")))


def lives(proc: Path, process: Process, state: str = "D") -> None:
    (proc / str(process.pid)).mkdir(exist_ok=True)
    fields = " ".join(["0"] * 20)
    (proc / str(process.pid) / "stat").write_text(f"{process.pid} ({process.comm}) {state} 1 {fields}")


def test_one_after_the_other_and_the_main_process_last(tmp_path: Path) -> None:
    for process in (CORE, WORKER, API):
        lives(tmp_path, process)
    abort = Abort((API, WORKER, CORE), API.pid, 0.0, str(tmp_path))
    assert abort.step(0.0)
    abort.hear("stack of the core")
    assert abort.step(0.1)  # it prints yet
    lives(tmp_path, CORE, "Z")
    assert abort.step(0.2)
    abort.hear("and its end, read after it was gone")
    assert abort.step(0.3)
    abort.hear("of which there is more")
    assert abort.step(0.4) and abort.step(0.5)
    abort.hear("stack of the worker")
    (tmp_path / str(WORKER.pid) / "stat").unlink()
    assert abort.step(0.6) and abort.step(0.7)
    abort.hear("stack of the API")
    lives(tmp_path, API, "Z")
    assert abort.step(0.8) and not abort.step(0.9)
    told = [line.split(" pid ")[0] for line in abort.text.splitlines()]
    assert told == [
        "=== core", "stack of the core", "and its end, read after it was gone", "of which there is more",
        "=== worker", "stack of the worker", "=== api", "stack of the API",
    ]  # fmt: skip


def test_a_process_that_does_not_end_costs_its_time_alone(tmp_path: Path) -> None:
    lives(tmp_path, CORE)
    lives(tmp_path, API)
    abort = Abort((CORE, API), API.pid, 0.0, str(tmp_path))
    assert abort.step(0.0) and abort.step(EACH_S - 0.1) and abort.step(EACH_S)
    assert f"pid {CORE.pid} did not end within" in abort.text and f"=== api pid {API.pid}" in abort.text
    assert not abort.step(2 * EACH_S)


def test_all_of_it_has_an_end(tmp_path: Path) -> None:
    many = [Process(NOBODY + n, 1, f"rank{n}", "D", 0.0) for n in range(20)]
    for process in many:
        lives(tmp_path, process)
    abort = Abort(many, 0, 0.0, str(tmp_path))
    now = 0.0
    while abort.step(now):
        now += 0.5
    assert now <= ALL_S + 0.5
    assert "no time was left for " in abort.text


def test_without_processes_there_is_nothing_to_do(tmp_path: Path) -> None:
    abort = Abort((), 0, 0.0, str(tmp_path))
    assert not abort.step(0.0) and abort.text == "\n"
