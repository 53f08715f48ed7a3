from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from appliance.config.model import Runtime
from appliance.runtime import locks, resolve
from appliance.runtime.resolve import Unavailable

GOOD, OTHER = hashlib.sha256(b"good").hexdigest(), "b" * 64
LOCK = locks.parse("x.txt", f"# python: 3.11\nFast_Lib==1.0 --hash=sha256:{GOOD} --hash=sha256:{'c' * 64}\n")


def package(*wheels: dict[str, Any], name: str = "fast-lib") -> dict[str, Any]:
    return {"packages": [{"name": name, "version": "1.0", "wheels": list(wheels)}]}


def entry(name: str, sha: str = GOOD, **more: Any) -> dict[str, Any]:
    return {"url": f"https://host.invalid/a/{name}", "hashes": {"sha256": sha}, **more}


def test_only_files_of_the_lock_count_and_the_best_is_taken() -> None:
    (wheel,) = resolve.plan(
        package(
            entry("fast_lib-1.0-cp311-cp311-manylinux_2_34_x86_64.whl", OTHER),
            entry("fast_lib-1.0-py3-none-any.whl", "c" * 64),
            entry("fast_lib-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", size=5),
        ),
        LOCK,
        (),
    )
    assert (wheel.filename, wheel.size, wheel.sha256, wheel.path) == (
        "fast_lib-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", 5, GOOD, None)  # fmt: skip


@pytest.mark.parametrize(
    "pylock",
    [
        package(entry("fast_lib-1.0-py3-none-any.whl", OTHER)),
        package(),
        package(entry("a-1-py3-none-any.whl"), name="a"),
    ],
)
def test_a_package_without_a_file_of_the_lock_is_named(pylock: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match=r"1\.0 can be had, but not the file that was tested"):
        resolve.plan(pylock, LOCK, ())


@pytest.mark.parametrize("kind", ["url", "file url", "path", "other house"])
def test_a_file_of_the_wheelhouse_needs_no_download(tmp_path: Path, kind: str) -> None:
    name = "fast_lib-1.0+cpu-py3-none-any.whl"
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / name).write_bytes(b"good")
    address = {
        "url": f"https://host.invalid/{name.replace('+', '%2B')}",
        "file url": f"file://{tmp_path}/second/{name.replace('+', '%2B')}",
        "path": f"second/{name}",
        "other house": f"file:///nowhere/{name}",
    }[kind]
    key = "path" if kind == "path" else "url"
    pylock = package({key: address, "hashes": {"sha256": GOOD}})
    (wheel,) = resolve.plan(pylock, LOCK, (str(tmp_path), str(tmp_path / "second")), base=str(tmp_path))
    assert (wheel.filename, wheel.path, wheel.size) == (name, str(tmp_path / "second" / name), 4)


def test_a_file_with_other_bytes_in_the_wheelhouse_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "fast_lib-1.0-py3-none-any.whl").write_bytes(b"evil")
    (wheel,) = resolve.plan(package(entry("fast_lib-1.0-py3-none-any.whl")), LOCK, (str(tmp_path),))
    assert wheel.path is None


def test_several_wheelhouses() -> None:
    assert Runtime().wheelhouses == ()
    assert Runtime(wheelhouse="/a:/b/c:").wheelhouses == ("/a", "/b/c")
    assert resolve.Sources(("/a", "/b")).find_links() == ["--find-links", "/a", "--find-links", "/b"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("error for https://bob:secret@host.invalid/simple: no", "error for https://host.invalid/simple: no"),
        ("`https://token@host.invalid:8443/a@b/c`", "`https://host.invalid:8443/a@b/c`"),
        ("mail me at a@b", "mail me at a@b"),
        ("plain", "plain"),
    ],
)
def test_credentials_are_not_shown(text: str, shown: str) -> None:
    assert resolve.redacted(text) == shown
