"""A program that starts itself again: told its descriptor once, and a child of nobody we know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import os, socket, sys
from appliance.host import reexec
descriptor = reexec.passed_descriptor()
if descriptor is None:
    ours, theirs = socket.socketpair()
    child = reexec.start_again(theirs.fileno())
    theirs.close()
    assert os.waitpid(child, 0)[1] == 0
    pid = int.from_bytes(ours.recv(4), "big")
    said = ours.recv(1000).decode().split("|")
    assert ours.recv(1) == b"", "nobody else holds the other end"
    print(pid not in (os.getpid(), child), said == [str(pid), sys.argv[1], "none", "no"])
else:
    reexec.detach(descriptor)
    words = [str(os.getpid()), sys.argv[1], os.environ.get("WATCHDOG_PID", "none")]
    words.append("yes" if os.get_inheritable(descriptor) or reexec.passed_descriptor() else "no")
    os.write(descriptor, "|".join(words).encode())
"""


@pytest.mark.parametrize("kind", ["script", "command"])
def test_the_same_program_runs_again_and_forks_away(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755 if kind == "command" else 0o644)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WATCHDOG_PID": "1", "LISTEN_FDS": "2"}
    command = [*([sys.executable] if kind == "script" else []), str(program), "a word"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
