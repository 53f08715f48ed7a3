"""A gateway and the processes that take over from it: each is started by the one before and forks away from it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.support.gatewayprocess import ROOT, Gateway
from tests.support.waiting import wait_until

PR_SET_CHILD_SUBREAPER = 36  # prctl(2): what forks away becomes our child, as it becomes systemd's


class Lineage(Gateway):
    """Runs a copy of the program, so that a test can install another one; `pids` are all processes so far.

    The copy's bytecode is not renewed: what is installed twice within a second could be taken for what it replaces.
    """

    def __init__(
        self,
        directory: Path,
        text: str,
        *,
        wait: bool = True,
        defect: tuple[str, str, str] | None = None,
        **environment: str,
    ) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.code = directory / "code"
        shutil.copytree(ROOT / "appliance", self.code / "appliance")
        if defect is not None:
            self.install(*defect)
        super().__init__(directory, text, wait=wait, PYTHONPATH=str(self.code),
                         LLM_APPLIANCE_STATE=str(directory / "state"),
                         PYTHONDONTWRITEBYTECODE="1", **environment)  # fmt: skip
        self.pids = [self.process.pid]
        (directory / "state/gateway").mkdir(parents=True, exist_ok=True)

    def install(self, file: str, old: str, new: str) -> None:
        """A new version of the program that differs from this one in one place."""
        path = self.code / "appliance" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def signal_main(self, number: int) -> None:
        os.kill(self.pids[-1], number)

    def hand_over(self) -> int:
        """SIGUSR2, and the pid of the process that took over."""
        before = self.text().count(" has taken over;")
        self.signal_main(signal.SIGUSR2)
        wait_until(lambda: self.text().count(" has taken over;") > before, 60, f"a hand-over: {self.text()}", 0.02)
        self.pids.append(int(re.findall(r"process (\d+) has taken over", self.text())[-1]))
        wait_until(lambda: self.admin("/status")["gateway"]["pid"] == self.pids[-1], 10, "the new one answers", 0.02)
        return self.pids[-1]

    def refused(self) -> str:
        """SIGUSR2 to a program that does not come up, and what is said of it."""
        before = self.text().count("did not take over")
        self.signal_main(signal.SIGUSR2)
        wait_until(lambda: self.text().count("did not take over") > before, 60, "it is told", 0.02)
        return self.text()

    def gone(self, pid: int) -> bool:
        """Whether a process has ended; it is reaped then."""
        if pid == self.process.pid:
            return self.process.poll() is not None
        try:
            return os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            return not Path(f"/proc/{pid}").exists()

    def wait_gone(self, pid: int, limit: float = 20) -> None:
        wait_until(lambda: self.gone(pid), limit, f"the process {pid} ends: {self.text()[-2000:]}", 0.02)

    def succeed_by_hand(self) -> subprocess.Popen[bytes]:
        """Another process in the same place, as systemd starts one after a crash."""
        self.log_file.unlink()
        process = self._start()
        self.process_by_hand = process
        wait_until(lambda: "listening on" in self.text(), 30, f"it listens: {self.text()}", 0.02)
        found = re.search(r"listening on \S*?:(\d+)[^\n]*, admin on \S*:(\d+)", self.text())
        assert found
        self.port, self.admin_port = int(found[1]), int(found[2])
        self.pids.append(process.pid)
        return process

    def predecessors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin("/status")["gateway"]["predecessors"]
        return found

    def still(self) -> bool:
        """Whether nothing is counted anywhere: calls, places, reservations, older processes."""
        status = self.admin("/status")
        gateway, keys = status["gateway"], status["keys"]
        counted = [gateway["running"], gateway["queued"], keys["running"], keys["reserved_tokens"]]
        return counted == [0, 0, 0, 0] and not gateway["predecessors"]

    def command(self) -> list[str]:
        """In a session of its own: what descends from it can be told from the other children of this process."""
        return ["setsid", *super().command()]

    def kill(self) -> None:
        """End all that descends from it, processes of attempts that failed too."""
        by_hand: subprocess.Popen[bytes] | None = getattr(self, "process_by_hand", None)
        for leader in [self.process, *([by_hand] if by_hand else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-leader.pid, 0)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
