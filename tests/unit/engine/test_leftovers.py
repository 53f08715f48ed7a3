from __future__ import annotations

import mmap
import os
import socket
import tempfile
from pathlib import Path

import pytest

from appliance.engine.leftovers import clear_shared_memory, clear_sockets


def segment(directory: Path, name: str, age: float = 60.0) -> Path:
    path = directory / name
    path.write_bytes(bytes(4096))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


def test_abandoned_segments_go_and_nothing_else(tmp_path: Path) -> None:
    gone = [segment(tmp_path, name) for name in ("psm_1", "sem.mp-x", "vllm_dist_1", "nccl-abc")]
    stays = [segment(tmp_path, "foreign"), segment(tmp_path, "psm_new", age=0.0)]
    (tmp_path / "psm_directory").mkdir()
    (tmp_path / "psm_link").symlink_to(stays[0])
    assert clear_shared_memory(str(tmp_path)) == len(gone)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in (*stays, tmp_path / "psm_directory", tmp_path / "psm_link"))


@pytest.mark.parametrize("linked", [False, True], ids=["by its name", "as a semaphore, which gets its name afterwards"])
def test_a_segment_that_somebody_has_mapped_stays(linked: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        path = segment(Path(shared), "7cXq2b" if linked else "psm_used")
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096):
            if linked:  # as glibc's sem_open does
                os.link(path, f"{shared}/sem.mp-used")
                path.unlink()
                path = Path(shared, "sem.mp-used")
            os.utime(path, (1, 1))
            assert clear_shared_memory(shared) == 0 and path.exists()
        assert clear_shared_memory(shared) == 1


def test_a_place_that_is_not_there() -> None:
    assert clear_shared_memory("/nowhere") == 0
    clear_sockets("/nowhere")


def test_sockets_go_and_files_stay() -> None:
    with tempfile.TemporaryDirectory() as home, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{home}/stale")
        Path(home, "file").touch()
        clear_sockets(home)
        assert os.listdir(home) == ["file"]
