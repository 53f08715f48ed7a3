"""A launcher that is asked for evidence: stacks, shared memory, lines, and the abort that makes vLLM tell."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.enginestage import LIMIT, Stage, alive, ask, connected, staged
from tests.support.waiting import wait_until


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


def serving(stage: Stage, script: str = "tp=2", unit: str = "") -> dict[str, int]:
    stage.configure(script)
    stage.start(unit=unit)
    stage.until("serving")
    return stage.pids()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T", LIMIT, "it is stopped", 0.01)


def blocks(text: str, pids: dict[str, int]) -> dict[str, str]:
    """The text of each process, by the name of its pid."""
    named = {pid: name for name, pid in pids.items()}
    found = {}
    for block in text.split("=== ")[1:]:
        found[named[int(block.split(" pid ")[1].split(",")[0])]] = block
    return found


def test_what_each_process_does_is_told_and_nothing_is_disturbed(stage: Stage) -> None:
    pids = serving(stage)
    freeze(pids["worker"])
    parts, done = ask(stage, {"verb": "stacks"})
    assert done["ok"]
    told = blocks(parts["processes"], pids)
    assert set(told) == set(pids)
    assert f"parent {pids['core']}, state T" in told["worker"]
    assert "state S" in told["core"] and "open files: " in told["core"] and "thread " in told["core"]
    assert all(alive(pid) for pid in pids.values()) and stage.read("state.json")["phase"] == "serving"


@pytest.mark.parametrize("said", ["a stack", "nothing for ever"])
def test_py_spy_is_used_where_the_runtime_has_it(stage: Stage, said: str) -> None:
    spy = stage.home / "runtime/bin/py-spy"
    body = 'echo "Thread of $4"' if said == "a stack" else "exec sleep 600"
    spy.write_text(f"#!/bin/sh\n{body}\n")
    spy.chmod(0o755)
    pids = serving(stage)
    parts, done = ask(stage, {"verb": "stacks"})
    assert done["ok"]
    told = blocks(parts["stacks"], pids)
    assert set(told) == set(pids)
    expected = "Thread of " if said == "a stack" else "did not end within"
    assert all(expected in block for block in told.values())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("NCCL version 2.28.9\nERRORS\n", "NCCL version 2.28.9\nERRORS\n"),
        ("", ""),
        pytest.param(None, "", id="nobody listens"),
    ],
)
def test_nccl_is_asked_for_its_view_of_the_ranks(stage: Stage, said: str | None, told: str) -> None:
    """A rank's thread listens on loopback, as NCCL's does; who does not listen or does not end costs nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as ranks:
        if said is None:
            ranks.close()
        place = "127.0.0.1:9" if said is None else f"127.0.0.1:{ranks.getsockname()[1]}"
        stage.configure("tp=2", env=f'NCCL_RAS_ADDR = "{place}"')
        stage.start()
        stage.until("serving")
        heard: list[bytes] = []

        def answer() -> None:
            accepted, _ = ranks.accept()
            with accepted:
                heard.append(accepted.recv(100))
                accepted.sendall(str(said).encode())

        thread = threading.Thread(target=answer, daemon=True)
        if said is not None:
            thread.start()
        parts, done = ask(stage, {"verb": "stacks"})
        assert done["ok"] and parts.get("nccl", "") == told
        if said is not None:
            thread.join(LIMIT)
            assert heard == [b"verbose status\n"]


def test_shared_memory_and_lines(stage: Stage) -> None:
    serving(stage)
    parts, _ = ask(stage, {"verb": "shm"})
    assert parts["shm"].startswith("/dev/shm: ")
    parts, _ = ask(stage, {"verb": "lines"})
    last = parts["lines"].splitlines()[-1]
    stamp, _, text = last.partition(" ")
    assert float(stamp) > 1e9
    assert any(line.endswith("Application startup complete.") for line in parts["lines"].splitlines()), text


@pytest.mark.parametrize("frozen", [(), ("core", "worker-2"), ("api", "worker")])
def test_an_abort_tells_the_stack_of_each_process_also_of_stopped_ones(stage: Stage, frozen: tuple[str, ...]) -> None:
    pids = serving(stage)
    for name in frozen:
        freeze(pids[name])
    order: dict[str, object] = {"verb": "abort", "cause": "hang-collective", "reason": "no byte for 94s"}
    parts, done = ask(stage, order | {"incident": "20261129T173000Z-chat-hang-collective"})
    assert done == {"done": True, "ok": True, "message": "4 processes were aborted"}
    told = blocks(parts["stacks"], pids)
    assert list(told)[-1] == "api"
    assert all("Fatal Python error: Aborted" in block for block in told.values())
    assert "turns_in_its_loop" in told["core"] and "turns_in_its_loop" not in told["worker"]
    assert "waits_for_its_peers" in told["worker"] and "waits_for_its_peers" in told["worker-2"]
    assert stage.ended() == 71
    verdict = stage.read("verdict.json")
    assert (verdict["cause"], verdict["message"]) == ("hang-collective", "no byte for 94s")
    assert not any(alive(pid) for pid in pids.values())
    assert not (stage.directory / "launcher/evidence.sock").exists()
    assert "aborting 4 processes for their stacks: hang-collective: no byte for 94s" in stage.output


@pytest.mark.parametrize("verb", ["stacks", "shm", "lines", "abort"])
def test_a_question_about_another_run_gets_nothing_and_ends_nothing(stage: Stage, verb: str) -> None:
    """The next run of a unit begins where the one before has ended."""
    pids = serving(stage, unit="b")
    for other in ("a", "b.1"):
        assert ask(stage, {"verb": verb, "run": other}) == (
            {}, {"done": True, "ok": False, "message": "another run has begun"},
        )  # fmt: skip
    assert all(alive(pid) for pid in pids.values()) and stage.read("state.json")["phase"] == "serving"
    _, done = ask(stage, {"verb": verb, "run": "b"})
    assert done["ok"]


def test_an_abort_that_was_asked_for_is_no_death(stage: Stage) -> None:
    serving(stage)
    _, done = ask(stage, {"verb": "abort", "reason": "by the operator"})
    assert done["ok"]
    assert stage.ended() == 0
    assert stage.read("verdict.json")["requested"] is True
    assert {"STATUS": "stopping: asked to stop"} in stage.manager.messages  # as soon as it is known


def test_an_abort_goes_on_when_its_asker_leaves(stage: Stage) -> None:
    pids = serving(stage)
    with connected(stage) as connection:
        connection.sendall(b'{"verb": "abort", "cause": "hang-kernel"}\n')
        wait_until(lambda: "aborting 4 processes" in stage.output, LIMIT, "it has begun", 0.01)
    assert stage.ended() == 71
    assert stage.read("verdict.json")["cause"] == "hang-kernel"
    assert not any(alive(pid) for pid in pids.values())


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"x\n",
        b"[1]\n",
        b'{"verb": "kill"}\n',
        b'{"verb": "abort", "cause": "no-such-cause"}\n',
        b"[" * 8000 + b"\n",
    ],
)
def test_what_is_no_request_is_refused(stage: Stage, line: bytes) -> None:
    pids = serving(stage, "")
    _, done = ask(stage, line)
    assert not done.get("ok")
    assert all(alive(pid) for pid in pids.values())


def test_askers_that_say_nothing_or_too_much_or_leave_do_not_hinder_the_engine(stage: Stage) -> None:
    pids = serving(stage, "")
    with connected(stage), connected(stage), connected(stage):
        assert ask(stage, b"x" * 100_000) == ({}, {})
    for _ in range(20):  # more than there is room for at once
        with connected(stage) as connection:
            connection.sendall(b'{"verb": "lines"}\n')
    wait_until(lambda: ask(stage, {"verb": "lines"})[1].get("ok"), LIMIT, "it answers", 0.02)
    assert all(alive(pid) for pid in pids.values())


def test_only_its_own_user_and_root_may_ask(stage: Stage) -> None:
    serving(stage, "")
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    for directory in (
        stage.home,
        stage.home / "run",
        stage.home / "run/engines",
        stage.directory,
        stage.directory / "launcher",
    ):
        directory.chmod(0o755)
    (stage.directory / "launcher/evidence.sock").chmod(0o777)
    child = os.fork()
    if child == 0:
        os.setresuid(12345, 12345, 12345)
        try:
            os._exit(0 if ask(stage, {"verb": "lines"}) == ({}, {}) else 1)
        except ConnectionError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_ranks_of_an_engine_get_an_address_of_their_own(stage: Stage) -> None:
    (stage.home / "runtime/.complete").write_text('{"v": 1, "version": "0.32.0", "device": "cuda"}')
    stage.configure("tp=2", keys='gpus = ["GPU-a", "GPU-b"]')
    stage.start()
    stage.until("serving")
    host, _, port = stage.read("environment")["NCCL_RAS_ADDR"].partition(":")
    assert host == "127.0.0.1" and 0 < int(port) < 65536
