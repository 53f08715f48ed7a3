from __future__ import annotations

import pytest

from appliance.wire.pyspy import Stack, compared, stacks

TEXT = """=== VLLM::EngineCor pid 7, parent 5, state R
Process 7: VLLM::EngineCore
Python v3.12.3 (/usr/bin/python3.12)

Thread 7 (active): "MainThread"
    all_reduce (pynccl.py:120)
    execute_model (gpu_worker.py:355)
Thread 9 (idle): "Thread-1 (_run)"
    wait (threading.py:355)

=== VLLM::Worker_TP pid 8, parent 7, state D
Thread 8 (idle)
    acquire (filelock.py:9)

=== python3 pid 9, parent 7, state S
Error: Permission Denied: Try running again with elevated permissions
py-spy did not end within 5 s
"""
CORE = Stack("VLLM::EngineCor", ("all_reduce (pynccl.py:120)", "execute_model (gpu_worker.py:355)"))


def test_the_main_thread_of_each_process() -> None:
    found = stacks(TEXT)
    assert found == {7: CORE, 8: Stack("VLLM::Worker_TP", ("acquire (filelock.py:9)",)), 9: Stack("python3")}
    assert stacks("") == stacks("no stacks\n    at all\n") == {}


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        (CORE, CORE, "VLLM::EngineCor (7) is where it was 61s ago: all_reduce (pynccl.py:120)"),
        (CORE, Stack("VLLM::EngineCor", ("step (core.py:1)",)),
         "VLLM::EngineCor (7) has moved: step (core.py:1), and 61s ago all_reduce (pynccl.py:120)"),
        (CORE, Stack("VLLM::EngineCor"), None),
        (Stack(""), CORE, None),
    ],
)  # fmt: skip
def test_what_two_looks_say(before: Stack, after: Stack, fact: str | None) -> None:
    assert compared({7: before, 1: CORE}, {7: after, 2: CORE}, 61.0) == ((fact,) if fact else ())
