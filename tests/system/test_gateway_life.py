"""The gateway's process under systemd: restarts and upgrades under continuous load, and what goes wrong in them.

Short requests go to a fake engine, thousands of them, and so does the stream that must outlast an upgrade: it ends when
it is told to. The other streams come from the real vLLM.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import BASE, CHAT, SUPPORT, Appliance
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm

UNIT = "llm-gateway.service"
FAKE = "fake"
LONG = 47  # tokens of the stream that outlasts an upgrade; no other answer here has as many
CONFIG = "/etc/llm-appliance/config.toml"
EDIT = "\n[gateway.admission]\nqueue_size = 77\n"
DROPIN = "/etc/llm-appliance/config.d/70-fake.toml"
ENGINES = f"""
[[engine]]
name = "default"
model = "builtin:smollm2-135m"
[[engine]]
name = "{FAKE}"
model = "tests/{FAKE}"
served_names = ["{FAKE}"]
remote = ["http://127.0.0.1:9000"]
[gateway.timeouts]
stall = "600s"
"""
FINISHING = "in the process before an upgrade"
MAIN = "/usr/lib/llm-appliance/appliance/gateway/main.py"


@pytest.fixture(scope="module")
def busy(appliance: Appliance) -> Iterator[Appliance]:
    """The appliance with a fake engine beside the real one."""
    box = appliance.box
    box.put(SUPPORT, "/root/tests/support")
    engine = f"python3 -m tests.support.fakeengine --port 9000 --model {FAKE}"
    box.sh(f"systemd-run --unit=fake-engine --working-directory=/root {engine}")
    box.write(DROPIN, ENGINES)
    appliance.cli("apply", timeout=180)
    wait_until(lambda: answers(appliance, FAKE), 60, "the fake engine answers", pause=0.5)
    wait_until(lambda: answers(appliance, CHAT), 180, "the real engine answers", pause=0.5)
    yield appliance
    box.sh(f"rm {DROPIN}; systemctl stop fake-engine")
    appliance.cli("apply", timeout=180)


def answers(appliance: Appliance, model: str) -> bool:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    return appliance.curl("/v1/chat/completions", f"-H 'Content-Type: application/json' -d '{body}'")[0] == 200


class Load:
    """Clients of short requests in the box's network; `end` says how they fared."""

    def __init__(self, appliance: Appliance, stop: Path) -> None:
        self._stop = stop
        loop = [sys.executable, str(SUPPORT / "clientloop.py"), f"{BASE}/v1/chat/completions"]
        argv = [*loop, appliance.key, FAKE, str(stop), "--limit", "900", "--fresh", "4", "--kept", "4"]
        self.process = subprocess.Popen(appliance.box.outside_argv(argv), stdout=subprocess.PIPE, text=True)

    def asked(self) -> int:
        try:
            return int(Path(f"{self._stop}.count").read_text() or 0)
        except OSError:
            return 0

    def wait_asked(self, count: int) -> None:
        """Until so many more were asked."""
        goal = self.asked() + count
        wait_until(lambda: self.asked() >= goal, 240, f"{count} more requests", pause=0.05)

    def end(self) -> dict[str, Any]:
        self._stop.touch()
        out, _ = self.process.communicate(timeout=120)
        told: dict[str, Any] = json.loads(out)
        return told


@contextlib.contextmanager
def load(appliance: Appliance, directory: Path) -> Iterator[Load]:
    made = Load(appliance, directory / "stop")
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def main_pid(appliance: Appliance) -> int:
    return int(appliance.show(UNIT, "MainPID")["MainPID"])


def members(appliance: Appliance) -> list[int]:
    """The processes of the gateway's unit."""
    out = appliance.box.sh(f"cat /sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs", check=False).out
    return [int(word) for word in out.split() if word.isdigit()]


def wait_still(appliance: Appliance) -> None:
    """Until nothing is counted anywhere."""

    def still() -> bool:
        status = appliance.status()
        gateway, keys = status["gateway"], status["keys"]
        return [gateway["running"], gateway["queued"], gateway["predecessors"], keys["running"],
                keys["reserved_tokens"]] == [0, 0, [], 0, 0]  # fmt: skip

    wait_until(still, 30, "all counters at zero", pause=0.3)


def ledger_lines(appliance: Appliance, tokens: int) -> int:
    """How many lines of the usage ledger tell of so many tokens; the first may come a moment after its call ended."""
    grep = f"grep -h '\"completion_tokens\":{tokens},' /var/log/llm-appliance/audit/usage-*.jsonl"
    told = wait_until(lambda: appliance.box.sh(grep, check=False).out, 30, "a line in the usage ledger", pause=0.3)
    return len(str(told).splitlines())


def hand_over(appliance: Appliance) -> tuple[int, int]:
    """As the package's script does it: the pids before and after."""
    before = main_pid(appliance)
    appliance.box.sh(f"kill -USR2 {before}")
    wait_until(lambda: main_pid(appliance) not in (0, before), 60, "another main process", pause=0.2)
    return before, main_pid(appliance)


def test_restarts_under_load_lose_no_request(busy: Appliance, tmp_path: Path) -> None:
    """2,000 requests at least, with and without keep-alive, over ten restarts; a connection's error is a failure."""
    with load(busy, tmp_path) as clients:
        clients.wait_asked(100)
        for _ in range(10):
            before = main_pid(busy)
            busy.box.sh(f"systemctl restart {UNIT}", timeout=120)
            assert main_pid(busy) not in (0, before)
            clients.wait_asked(200)
        told = clients.end()
    print(f"restarts: {told}")
    assert told["failed"] == 0, told["bad"]
    assert told["good"] == told["asked"] >= 2000
    wait_still(busy)
    busy.cli("audit verify")


def test_a_long_stream_is_finished_within_drain(busy: Appliance) -> None:
    with busy.streaming(tokens=200) as stream:
        busy.box.sh(f"systemctl restart {UNIT}", timeout=120)
        assert stream.end(60)["error"] is None


def test_an_upgrade_hands_over(busy: Appliance, newer_deb: Path, tmp_path: Path) -> None:
    """A real upgrade: short requests go on, a stream that began before it ends after it, whole; an edit stays."""
    box = busy.box
    box.write(CONFIG, box.read(CONFIG) + EDIT)
    busy.cli("apply", timeout=120)
    edited, engine, before = box.read(CONFIG), busy.engine(), main_pid(busy)
    box.put(newer_deb, "/root/newer.deb")
    held = busy.streaming(tokens=LONG, model=FAKE, text="[[fault:hold=6]]")
    with load(busy, tmp_path) as clients, held as stream:
        clients.wait_asked(50)
        box.sh("apt-get install -y --no-install-recommends /root/newer.deb", timeout=180)
        after = main_pid(busy)
        assert after not in (0, before)
        assert members(busy) and {before, after} <= set(members(busy)), "the old process still finishes its stream"
        assert stream.process.poll() is None
        assert busy.status()["versions"]["appliance"] == "99.0.0"
        wait_until(lambda: FINISHING in box.sh(f"systemctl status {UNIT}").out, 15, "the status line says so", pause=1)
        clients.wait_asked(200)
        told = clients.end()
        box.sh("curl -sf -d 6 http://127.0.0.1:9000/_fake/go")
        streamed = stream.end(60)
    print(f"upgrade: {told}")
    assert told["failed"] == 0, told["bad"]
    assert streamed["error"] is None and streamed["finish"] == "length"
    assert busy.show(UNIT, "NRestarts", "ActiveState") == {"NRestarts": "0", "ActiveState": "active"}
    assert (busy.engine()["start"], busy.engine()["pid"]) == (engine["start"], engine["pid"])
    assert box.read(CONFIG) == edited
    wait_until(lambda: members(busy) == [after], 90, "the old process has ended", pause=1)
    wait_still(busy)
    assert ledger_lines(busy, LONG) == 1, "the stream's line, with every token, once"
    busy.cli("audit verify")


def test_code_that_does_not_come_up_changes_nothing(busy: Appliance) -> None:
    box = busy.box
    good, before = box.read(MAIN), main_pid(busy)
    box.write(MAIN, "this is no program\n")
    try:
        box.sh(f"kill -USR2 {before}")
        wait_until(lambda: "did not take over" in busy.journal(f"-u {UNIT}"), 60, "the journal says so", pause=0.5)
    finally:
        box.write(MAIN, good)
    assert main_pid(busy) == before and answers(busy, FAKE)
    wait_until(lambda: members(busy) == [before], 30, "nothing is left of the new process")


def test_a_new_process_that_is_killed_is_restarted_and_nothing_is_lost(busy: Appliance) -> None:
    """systemd ends the old process with it, within `drain`; what that could not tell anybody, the next one writes."""
    with busy.streaming(tokens=300) as stream:
        before, after = hand_over(busy)
        busy.box.sh(f"kill -9 {after}")
        assert stream.end(120)["error"] is None
    wait_until(lambda: main_pid(busy) not in (0, before, after), 90, "systemd starts another", pause=0.3)
    wait_until(lambda: answers(busy, FAKE), 30, "it answers", pause=0.3)
    wait_still(busy)
    assert ledger_lines(busy, 300) == 1
    busy.cli("audit verify")


@pytest.mark.parametrize("verb", ["restart", "stop"])
def test_a_stop_in_the_middle_ends_both(busy: Appliance, verb: str) -> None:
    with busy.streaming(tokens=150) as stream:
        old = set(hand_over(busy))
        busy.box.sh(f"systemctl {verb} {UNIT}", timeout=120)
        assert stream.end(60)["error"] is None
    assert not old & set(members(busy))
    state = busy.show(UNIT, "ActiveState", "Result")
    assert state == {"ActiveState": "inactive" if verb == "stop" else "active", "Result": "success"}
    busy.box.sh(f"systemctl start {UNIT}")
    assert answers(busy, FAKE)


def test_a_new_main_process_that_stands_still_loses_the_watchdog(busy: Appliance) -> None:
    """The watchdog is the new process's: systemd ends it, and starts another."""
    with busy.short_watchdog():
        _, after = hand_over(busy)
        busy.box.sh(f"kill -{signal.SIGSTOP.value} {after}")
        wait_until(lambda: main_pid(busy) not in (0, after), 90, "systemd starts another", pause=0.5)
        wait_until(lambda: answers(busy, FAKE), 30, "it answers", pause=0.5)
    assert "Watchdog timeout" in busy.journal(f"-u {UNIT}")
