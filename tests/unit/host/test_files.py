from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from appliance.host import files


def test_a_replaced_file_has_its_bytes_and_mode_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.replace(target, b"one")
    files.replace(target, b"two", 0o640)
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("there", [True, False])
def test_what_fails_again_says_the_same_again(tmp_path: Path, there: bool) -> None:
    """Who tells a fault once until it changes compares the words."""
    target = tmp_path / "directory/file"
    if there:
        (target / "inside").mkdir(parents=True)
    told = set()
    for _ in range(2):
        with pytest.raises(OSError) as fault:
            files.replace(target, b"one")
        told.add(str(fault.value))
    assert len(told) == 1 and str(target) in told.pop()


def test_a_failed_replacement_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    target.mkdir()
    (target / "inside").write_text("keeps the directory from being replaced")
    with pytest.raises(OSError):
        files.replace(target, b"one")
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_json_goes_there_and_back(tmp_path: Path) -> None:
    name = os.fsdecode("ü".encode() + b"\xff")  # a file's, and those need not be UTF-8
    files.replace_json(tmp_path / "f", {"name": name, "n": 1})
    assert files.read_json(tmp_path / "f") == {"v": 1, "name": "ü?", "n": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b'{"v": 2}', b'{"name": 1}', b"\xff\xfe"])
def test_what_is_not_ours_is_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    assert files.read_json(tmp_path / "f") is None


@pytest.mark.parametrize(
    "content",
    [
        b'{"v": 1, "n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"v": 1, "n": NaN}',
        b'{"v": 1, "n": -Infinity}',
        b'{"v": 1, "n": 1e999}',
        b'{"v": 1, "n": ' + b"9" * 400 + b"}",
        b'{"v": 1, "name": "\\uD800"}',
        b'{"v": 1, "name": "\xed\xa0\x80"}',
        b'{"v": 1, "name": "' + b"x" * files.LARGEST + b'"}',
    ],
    ids=["deep", "NaN", "infinite", "beyond float", "beyond int", "half a pair", "half a pair in bytes", "large"],
)
def test_what_an_engine_could_write_to_harm_its_readers_is_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    assert files.read_json(tmp_path / "f") is None


@pytest.mark.timeout(20)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "endless").symlink_to("/dev/zero")
    assert [files.read_json(tmp_path / name) for name in ("pipe", "loop", "endless", "")] == [None] * 4


def test_escaped_pairs_are_text(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'{"v": 1, "name": "\\ud83d\\ude00"}')
    assert files.read_json(tmp_path / "f") == {"v": 1, "name": "\U0001f600"}


def test_a_missing_file_is_unknown(tmp_path: Path) -> None:
    assert files.read_json(tmp_path / "nothing") is None
