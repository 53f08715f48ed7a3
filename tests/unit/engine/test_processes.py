from __future__ import annotations

import threading
from pathlib import Path

from appliance.engine.processes import SHOWN_PROCESSES, SHOWN_THREADS, describe, shared_memory
from appliance.host.proc import Process

CORE = Process(7, 1, "VLLM::EngineCor", "D", 12.5)


def stat(pid: int, name: str) -> str:
    return f"{pid} ({name}) S 1 " + " ".join(["0"] * 20)


def test_what_proc_tells_is_shown_and_what_it_hides_left_out(tmp_path: Path) -> None:
    root = tmp_path / "7"
    (root / "fd").mkdir(parents=True)
    (root / "fd/0").touch()
    (root / "status").write_text("Name:\tx\nThreads:\t70\nVmRSS:\t  900 kB\nUid:\t0\n")
    for thread in range(7, 77):
        (root / f"task/{thread}").mkdir(parents=True)
        (root / f"task/{thread}/stat").write_text(stat(thread, "python"))
    (root / "task/7/wchan").write_text("uvm_spin_loop")
    text = describe([CORE], str(tmp_path))
    assert text.startswith("=== VLLM::EngineCor pid 7, parent 1, state D\ncpu 12.50 s\nThreads: 70\nVmRSS: 900 kB\n")
    assert "open files: 1\n" in text and "waits in uvm_spin_loop\n" in text and "Uid" not in text
    assert text.count("  thread ") == SHOWN_THREADS and text.endswith("and 6 more threads\n")
    assert describe([Process(8, 1, "gone", "S", 0.0)], str(tmp_path)) == (
        "=== gone pid 8, parent 1, state S\ncpu 0.00 s\n"
    )
    assert describe([CORE] * (SHOWN_PROCESSES + 2), str(tmp_path)).endswith("and 2 more processes\n")


def test_shared_memory_the_largest_first(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "psm_large").write_bytes(b"x" * 100)
    lines = shared_memory(str(tmp_path)).splitlines()
    assert lines[0].endswith("2 entries")
    assert [line.split()[-1] for line in lines[1:]] == ["psm_large", "small"]
    assert "cannot be read" in shared_memory(str(tmp_path / "nowhere"))


def test_segments_that_go_away_meanwhile_cost_no_others(tmp_path: Path) -> None:
    (tmp_path / "psm_stays").write_bytes(b"x")
    for number in range(2000):
        (tmp_path / f"psm_{number}").touch()
    remover = threading.Thread(target=lambda: [(tmp_path / f"psm_{number}").unlink() for number in range(2000)])
    remover.start()
    told = [shared_memory(str(tmp_path))]
    while remover.is_alive():
        told.append(shared_memory(str(tmp_path)))
    remover.join()
    assert [text for text in told if "psm_stays" not in text] == []
