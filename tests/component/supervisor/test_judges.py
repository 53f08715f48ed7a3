"""An engine that hangs under a supervisor that watches it: real launchers, real telemetry, a silent ledger."""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from appliance.cli.replay import replayed
from appliance.config.model import Supervisor
from appliance.wire import timeline
from tests.support.enginestage import ROOT
from tests.support.livestage import LiveStage, live
from tests.support.stage import LIMIT, unit

SETTINGS = """
[supervisor]
interval = "300ms"
mode = "{mode}"
[supervisor.restart]
backoff = "50ms"
[supervisor.hang]
suspect = "1s"
confirm = "1500ms"
confirm_blind = "3s"
confirm_idle_gpu = "2s"
compile_allowance = "5s"
grammar_allowance = "3s"
"""


SPY = """
echo "$4" >> {log}
echo "Thread $4 (idle): \\"MainThread\\""
if grep -q fakevllm /proc/$4/cmdline; then echo "    turns (api.py:$(date +%N))"; else echo "    waits (rank.py:7)"; fi
"""


class Gateway:
    """A gateway that has a call open at `chat` while `calls` is 1; of it nothing was heard, or a byte `heard` s ago."""

    def __init__(self, path: str) -> None:
        gateway = self
        self.calls = 0
        self.heard: float | None = None

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                chat: dict[str, Any] = {"inflight": gateway.calls, "structured": 0, "largest_prompt_tokens": 10}
                chat |= {"oldest_silent_s": 60.0 * gateway.calls, "since_any_byte_s": gateway.heard}
                body = json.dumps({"engines": {"chat": chat}}).encode()
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._server = socketserver.ThreadingUnixStreamServer(path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT)


@contextmanager
def watched(mode: str) -> Iterator[tuple[LiveStage, Gateway]]:
    with live("tp=2") as stage:
        gateway = Gateway(str(stage.run / "gateway/control.sock"))
        try:
            stage.write(stage.text_of_config, SETTINGS.format(mode=mode))
            yield stage, gateway
        finally:
            gateway.close()


def hang(stage: LiveStage, gateway: Gateway) -> dict[str, int]:
    """A worker stands still, and a call waits for it."""
    pids = stage.pids()
    os.kill(pids["worker"], signal.SIGSTOP)
    gateway.calls = 1
    return pids


@pytest.mark.slow
def test_a_hang_is_seen_taken_down_with_evidence_and_can_be_judged_again() -> None:
    with watched("act") as (stage, gateway):
        looks = stage.home / "looks"
        spy = stage.state / "runtimes/current/bin/py-spy"
        spy.write_text("#!/bin/sh" + SPY.format(log=looks))
        spy.chmod(0o755)
        stage.start()
        stage.served(1)
        assert not looks.exists()  # a healthy engine is left alone
        pids = hang(stage, gateway)
        stage.wait(lambda: stage.case() or stage.bundles, "it is taken down")
        gateway.calls = 0
        stage.served(2)
        (bundle,) = stage.bundles
        about = bundle.incident
        assert (about.kind, about.verdict) == ("kill", "hung")
        assert about.cause.startswith("hang-")
        assert "no progress for" in about.reason
        assert "waits_for_its_peers" in stage.text("stacks.txt")
        moves = {pid: fact for fact in about.evidence for pid in pids.values() if f"({pid})" in fact}
        assert "is where it was" in moves[pids["core"]] and "waits (rank.py:7)" in moves[pids["core"]]
        assert "has moved: turns (api.py:" in moves[pids["api"]]
        assert "when the engine was first suspected" in stage.text("first-stacks.txt")
        assert len(looks.read_text().split()) == 2 * len(pids)
        (death,) = stage.ledger()["deaths"]
        assert death["cause"] == about.cause
        recording = stage.state / "incidents" / about.id / "timeline.jsonl"
        replayed = subprocess.run(
            [sys.executable, "-m", "appliance", "replay", str(recording), "--json", "--config", str(stage.config)],
            cwd=ROOT, env=stage.environment, capture_output=True, text=True, timeout=LIMIT, check=True,
        )  # fmt: skip
        verdicts = [json.loads(line) for line in replayed.stdout.splitlines()]
        hung = [verdict for verdict in verdicts if verdict["verdict"] == "hung"]
        assert [(verdict["engine"], verdict["cause"]) for verdict in hung] == [("chat", about.cause)]
        assert f"{about.cause}: " in stage.journal and "suspect: no progress" in stage.journal


@pytest.mark.slow
def test_an_end_that_an_operator_asked_for_is_judged_as_one() -> None:
    """Its incident is of the run after a run that was taken down, too, and tells of both."""
    with live("tp=2") as stage:
        stage.start()
        stage.served(1)
        for run in (2, 3):
            assert stage.ask("restart", engine="chat", evidence=True, wait=True)[-1]["ok"]
            stage.served(run)
        last = max(stage.bundles, key=lambda bundle: bundle.incident.at)
        lines = (stage.state / "incidents" / last.incident.id / "timeline.jsonl").read_bytes().splitlines(keepends=True)
        recording = timeline.read(lines, "timeline.jsonl")
        found = list(replayed(recording.samples, recording.setting, Supervisor()))
        assert {(each.verdict, each.action) for each in found} <= {("unknown", "none"), ("ok", "none")}
        assert "draining" in {each.cause for each in found}


@pytest.mark.slow
def test_an_observer_tells_of_a_hang_and_touches_nothing() -> None:
    with watched("observe") as (stage, gateway):
        stage.start()
        stage.systemd.set(unit(), ActiveState="activating", SubState="start", InvocationID="first")  # by hand
        stage.wait(lambda: stage.fleet().get("state") == "serving", "it serves")
        os.kill(stage.pids()["worker"], signal.SIGSTOP)
        gateway.calls = 1
        shown = stage.wait(lambda: str(stage.fleet().get("cause")).startswith("hang-") and stage.fleet(), "it is told")
        assert shown["state"] == "serving" and "no progress for" in shown["reason"]
        assert shown["suspect"]  # the gateway prefers another replica
        stage.wait(lambda: "hung: no progress" in stage.journal, "the journal tells")
        os.kill(stage.pids()["worker"], signal.SIGCONT)
        gateway.heard = 0.0  # what was held for hung moves again
        stage.wait(lambda: stage.fleet().get("suspect") is False, "the suspicion is lifted")
        assert not stage.bundles and not stage.case()
        assert [verb for verb, *_ in stage.systemd.calls if verb in ("kill", "stop", "restart", "start")] == []
