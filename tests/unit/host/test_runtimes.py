from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest

from appliance.host import runtimes


def make(root: Path, name: str, **record: object) -> Path:
    path = root / name
    (path / "bin").mkdir(parents=True)
    if record:
        (path / ".complete").write_text(json.dumps({"v": 1, **record}))
        (path / "bin/python").symlink_to("/bin/sh")
    return path


def test_what_is_installed(tmp_path: Path) -> None:
    make(tmp_path, "0.32.0-cpu", version="0.32.0", device="cpu", python="3.11", lock="l", size=7)
    gone = make(tmp_path, "0.32.0-cpu-2", version="0.32.0", device="cpu", python="3.9", lock="k", size="many")
    (gone / "bin/python").unlink()
    (gone / "bin/python").symlink_to("/nonexistent/python3.9")
    make(tmp_path, "0.31.0-cuda")
    for name in ("bootstrap", "wheels", ".scratch", "cpu", "0.32.0-tpu"):
        (tmp_path / name).mkdir()
    (tmp_path / "0.30.0-cpu").write_text("no directory")
    runtimes.switch(str(tmp_path), "0.32.0-cpu-2")
    found = runtimes.installed(str(tmp_path))
    assert [(one.name, one.complete, one.usable, one.current, one.size) for one in found] == [
        ("0.31.0-cuda", False, False, False, None),
        ("0.32.0-cpu", True, True, False, 7),
        ("0.32.0-cpu-2", True, False, True, None),
    ]


def test_nothing_is_installed_where_there_is_no_directory(tmp_path: Path) -> None:
    assert runtimes.installed(str(tmp_path / "none")) == ()
    assert runtimes.linked(str(tmp_path / "none"), runtimes.CURRENT) is None
    assert runtimes.chosen(str(tmp_path / "none")) is None


def test_a_switch_remembers_what_was_before_and_never_leaves_no_link(tmp_path: Path) -> None:
    root = str(tmp_path)
    for name in ("a", "b", "b", "c"):
        runtimes.switch(root, name)
        assert os.readlink(tmp_path / "current") == name  # relative: the whole tree may be copied
    assert os.readlink(tmp_path / "previous") == "b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "previous"]


def test_a_switch_that_fails_changes_nothing(tmp_path: Path) -> None:
    runtimes.switch(str(tmp_path), "a")
    (tmp_path / "current").unlink()
    (tmp_path / "current").mkdir()  # a link cannot replace a directory
    with pytest.raises(OSError):
        runtimes.switch(str(tmp_path), "b")
    assert [path.name for path in tmp_path.iterdir()] == ["current"]


def test_a_choice(tmp_path: Path) -> None:
    runtimes.choose(str(tmp_path), "a")
    assert (runtimes.chosen(str(tmp_path)), runtimes.linked(str(tmp_path), "current")) == ("a", "a")


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with runtimes.exclusive(str(tmp_path)), pytest.raises(BlockingIOError), runtimes.exclusive(str(tmp_path)):
        pass
    with runtimes.exclusive(str(tmp_path)):
        pass


def test_removing_leaves_nothing(tmp_path: Path) -> None:
    make(tmp_path, "0.32.0-cpu", version="0.32.0")
    runtimes.remove(str(tmp_path), "0.32.0-cpu")
    runtimes.remove(str(tmp_path), "0.32.0-cpu")
    assert list(tmp_path.iterdir()) == []


def test_size_counts_a_hard_link_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    once = runtimes.size(str(tmp_path))
    os.link(tmp_path / "a", tmp_path / "b")
    assert runtimes.size(str(tmp_path)) == once >= 100_000


def test_users_are_those_that_map_a_file_below(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/lib.so").write_bytes(b"x" * 4096)
    with open(tmp_path / "one/lib.so", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert runtimes.users(str(tmp_path / "one")) == (os.getpid(),)
        assert runtimes.users(str(tmp_path / "on")) == ()
    assert runtimes.users(str(tmp_path / "one")) == ()
