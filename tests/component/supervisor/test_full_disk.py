"""A disk that takes nothing more: nothing is done that would have to be on it, and all is told as it is, once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stage import CHAT, EMBED, Stage, staged, unit


class Full:
    """The supervisor's directory on a disk of its own."""

    def __init__(self, directory: Path) -> None:
        self._hog = directory / "hog"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)], capture_output=True)
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted: {done.stderr.decode().strip()}")

    def fill(self) -> None:
        with open(self._hog, "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)

    def empty(self) -> None:
        self._hog.unlink()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, CHAT + EMBED) as made:
        yield made


@pytest.fixture
def disk(stage: Stage) -> Iterator[Full]:
    directory = stage.state / "supervisor"
    made = Full(directory)
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def serve_both(stage: Stage) -> None:
    stage.start()
    stage.serving("chat")
    stage.serving("embed")


@pytest.mark.slow
def test_a_death_that_cannot_be_put_on_disk_is_left_to_the_net_and_told_once(stage: Stage, disk: Full) -> None:
    serve_both(stage)
    disk.fill()
    calls = len(stage.systemd.calls)
    stage.die("chat", cause="cuda-fault", message="illegal access")
    assert "not done" in stage.wait(lambda: stage.fleet("chat")["next"], "what is not done is told")
    cycles(stage)
    assert len(stage.systemd.calls) == calls and stage.ledger("chat").get("deaths", []) == []
    assert stage.journal.count("nothing is done about them") == 1 and "illegal access" not in stage.journal
    disk.empty()
    stage.wait(lambda: len(stage.systemd.calls) > calls, "what is on disk is done")
    assert stage.systemd.calls[-1] == ["restart", unit("chat")]
    assert stage.journal.count("chat: cuda-fault: illegal access. It is restarted") == 1
    assert [death["cause"] for death in stage.ledger("chat")["deaths"]] == ["cuda-fault"]


@pytest.mark.slow
def test_what_is_decided_by_nothing_new_goes_on(stage: Stage, disk: Full) -> None:
    """A load time that cannot be kept holds up nobody: an engine that ends by hand, serves again, is shown so."""
    serve_both(stage)
    disk.fill()
    stage.systemd.set(unit("chat"), ActiveState="inactive", SubState="dead")
    stage.wait_state("stopped", "chat")
    stage.systemd.start(unit("chat"))
    stage.serve("chat", load_s=31.0)
    stage.wait_state("serving", "chat")
    cycles(stage)
    assert "No space left" not in stage.journal and stage.fleet("chat")["load_s"] == 26.0
    disk.empty()
    stage.wait(lambda: stage.fleet("chat")["load_s"] == 31.0, "it is kept at last")


def cycles(stage: Stage) -> None:
    """Some looks of the supervisor, which it shows by what it sees of the other engine."""
    stage.systemd.set(unit("embed"), ActiveState="inactive", SubState="dead")
    stage.wait_state("stopped", "embed")
    stage.systemd.start(unit("embed"))
    stage.wait_state("starting", "embed")
    stage.serve("embed")
    stage.wait_state("serving", "embed")
