"""The usage ledger of the real process: killed under load, on a full disk, and beside a second gateway."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.host import auditfiles
from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import ROOT, FakeEngine, Gateway, chat, config, remote
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
CLIENTS = 4
LOSS_S = 1.0  # the last second may be lost


def audited(engine: FakeEngine, directory: Path) -> str:
    return config(remote(engine.url)).replace("[audit]\nenabled = false", f'[audit]\ndirectory = "{directory}"')


def lines(directory: Path) -> list[dict[str, Any]]:
    """The requests on record; a half line at the end is left out."""
    files = [auditfiles.lines(str(directory / name)) for name in auditfiles.names(str(directory))]
    found = [json.loads(raw) for some in files for raw in some if raw.endswith(b"\n")]
    return [entry for entry in found if "event" not in entry]


def audit(config_file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, as its user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "appliance", "audit", *words, "--config", str(config_file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


class Load:
    """Clients that call without a pause until the gateway is gone; `done` is what was answered, and when."""

    def __init__(self, gateway: Gateway) -> None:
        self.done: dict[str, float] = {}
        self._gateway = gateway
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._gateway.port, timeout=20)
        with contextlib.suppress(OSError, http.client.HTTPException):
            for number in range(1_000_000):
                mark = f"c{client}-{number}"
                connection.request("POST", CHAT, json.dumps(chat()), {"X-Request-Id": mark})
                response = connection.getresponse()
                response.read()
                self.done[mark] = time.monotonic()
                assert response.status == 200
        connection.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.slow
def test_killed_under_load_only_the_last_second_is_lost(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    directory.mkdir()
    gateway = start(audited(engine, directory))
    answered = 0
    for _ in range(2):
        load = Load(gateway)
        begun = time.monotonic()
        wait_until(lambda since=begun: time.monotonic() - since > 2 * LOSS_S, 10, "two seconds of load", 0.05)
        assert audit(gateway.config_file, "verify").returncode == 0, "while lines are being written"
        killed = time.monotonic()
        gateway.process.kill()
        gateway.process.wait()
        load.join()
        kept = {entry["request_id"] for entry in lines(directory)[answered:]}
        durable = {mark for mark, at in load.done.items() if at < killed - LOSS_S}
        assert durable and durable <= kept
        checked = audit(gateway.config_file, "verify")
        assert checked.returncode == 0, checked.stdout
        answered = len(lines(directory))
        gateway.start_again()
    gateway.request("POST", CHAT, chat())
    assert gateway.stop() == 0
    checked = audit(gateway.config_file, "verify", "--json")
    assert checked.returncode == 0 and json.loads(checked.stdout)["lines"] == answered + 1
    told = audit(gateway.config_file, "show", "--sum", "--json")
    (one,) = json.loads(told.stdout)
    assert one["key_id"] == "anonymous" and one["requests"] == one["ok"] == answered + 1 and one["prompt_tokens"] > 0


class Confined(Gateway):
    """A gateway that sees a small file system of its own at `disk`."""

    disk: Path

    def command(self) -> list[str]:
        script = 'mount -t tmpfs -o size=64k,mode=0755 none "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self.disk), *super().command()]

    def inside(self, path: Path) -> Path:
        """A path as that process sees it."""
        return Path(f"/proc/{self.process.pid}/root{path}")


@pytest.fixture
def confined(engine: FakeEngine, tmp_path: Path) -> Iterator[Confined]:
    may_mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0"', str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(may_mount, capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of one's own is needed")
    Confined.disk = tmp_path / "disk"
    Confined.disk.mkdir()
    made = Confined(tmp_path / "gateway", audited(engine, Confined.disk))
    yield made
    made.kill()


def test_on_a_full_disk_requests_are_served_and_the_lines_wait(confined: Confined) -> None:
    gateway = confined
    assert gateway.request("POST", CHAT, chat()).status == 200
    wait_until(lambda: gateway.admin("/status")["gateway"]["ledger"]["waiting"] == 0, 5, "the first line", 0.05)
    with contextlib.suppress(OSError), gateway.inside(Confined.disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1024))
    for number in range(60):
        assert gateway.request("POST", CHAT, chat(), X_Request_Id=f"full-{number}").status == 200

    def ledger() -> dict[str, Any]:
        found: dict[str, Any] = gateway.admin("/status")["gateway"]["ledger"]
        return found

    wait_until(lambda: ledger()["problem"] and ledger()["waiting"], 5, "the full disk is told", 0.05)
    told = ledger()
    assert "no space left" in told["problem"] and told["dropped"] == 0 and 0 < told["waiting"] <= 60
    assert gateway.request("GET", "/healthz").status == 200
    gateway.inside(Confined.disk / "filler").unlink()
    wait_until(lambda: ledger()["problem"] is None and not ledger()["waiting"], 10, "the lines are written", 0.05)
    kept = [entry["request_id"] for entry in lines(gateway.inside(Confined.disk))]
    assert len(kept) == 61 and kept[1:] == [f"full-{number}" for number in range(60)]
    assert gateway.text().count("cannot be written") == 1 and gateway.text().count("is written again") == 1
    file = gateway.directory / "verify.toml"
    file.write_text(f'[audit]\ndirectory = "{gateway.inside(Confined.disk)}"\n')
    assert audit(file, "verify").returncode == 0
    assert gateway.stop() == 0


def test_a_directory_that_is_not_there_is_told_at_once(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    gateway = start(audited(engine, directory))
    wait_until(lambda: "cannot be written" in gateway.text(), 5, "it is told", 0.05)
    assert gateway.request("POST", CHAT, chat(), X_Request_Id="early").status == 200
    directory.mkdir()
    wait_until(lambda: auditfiles.names(str(directory)), 5, "the ledger begins", 0.05)
    assert gateway.stop() == 0
    assert [entry["request_id"] for entry in lines(directory)] == ["early"]


@pytest.mark.slow
def test_two_gateways_do_not_write_one_chain(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    directory.mkdir()
    first = start(audited(engine, directory))
    first.request("POST", CHAT, chat(), X_Request_Id="first")
    wait_until(lambda: auditfiles.names(str(directory)), 5, "the ledger begins", 0.05)
    second = start(audited(engine, directory))
    assert second.request("POST", CHAT, chat(), X_Request_Id="second").status == 200
    wait_until(lambda: "another gateway writes it" in second.text(), 5, "it is told", 0.05)
    assert first.stop() == 0
    wait_until(lambda: second.admin("/status")["gateway"]["ledger"]["waiting"] == 0, 5, "the second takes over", 0.05)
    assert second.stop() == 0
    assert [entry["request_id"] for entry in lines(directory)] == ["first", "second"]
    assert audit(first.config_file, "verify").returncode == 0


def test_a_reload_moves_the_ledger(engine: FakeEngine, start: Start, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    gateway = start(audited(engine, tmp_path / "a"))
    gateway.request("POST", CHAT, chat())
    wait_until(lambda: os.path.exists(tmp_path / "a/chain.json") and lines(tmp_path / "a"), 5, "the first line", 0.05)
    gateway.config_file.write_text(audited(engine, tmp_path / "b"))
    gateway.reload()
    gateway.request("POST", CHAT, chat())
    assert gateway.stop() == 0
    assert len(lines(tmp_path / "a")) == 1 and len(lines(tmp_path / "b")) == 1
