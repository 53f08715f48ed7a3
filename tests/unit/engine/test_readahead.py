"""Weights come into memory without anybody reading them. On the disk of the checkout: /tmp may be memory itself."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.engine import readahead
from appliance.host.journal import INFO

SIZE = 24 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
PROC = "21 1 0:1 / / rw - {kind} none rw\n", "MemAvailable: {available} kB\n"


@pytest.fixture
def model() -> Iterator[Path]:
    """Two files of weights and one of something else, on the disk and not in memory."""
    place = Path(tempfile.mkdtemp(prefix=".readahead-", dir=Path(__file__).parent))
    for name in ("model-1.safetensors", "model-2.safetensors", "optimizer.bin"):
        with open(place / name, "wb") as file:
            file.write(os.urandom(1 << 20) * (SIZE >> 20))
            os.fsync(file.fileno())
    forget(place)
    yield place
    shutil.rmtree(place)


def forget(place: Path) -> None:
    for path in place.glob("*.*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        if in_memory(path) > 0.5:
            pytest.skip("this file system keeps its files in memory")


def in_memory(path: Path) -> float:
    """The part of a file's pages that the page cache holds; a look by reading would begin to fetch them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    told = ctypes.create_string_buffer(SIZE // PAGE)
    # A private mapping that may be written is what ctypes can take the address of.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_COPY) as mapped:
        view = (ctypes.c_char * SIZE).from_buffer(mapped)
        assert libc.mincore(ctypes.addressof(view), SIZE, told) == 0
        del view
    return sum(byte & 1 for byte in told.raw[: SIZE // PAGE]) / (SIZE // PAGE)


def proc(directory: Path, kind: str = "ext4", available: int = 1 << 40) -> str:
    """A machine with so many bytes of memory, whose disk is of that kind."""
    (directory / "proc/self").mkdir(parents=True)
    (directory / "proc/self/mountinfo").write_text(PROC[0].format(kind=kind))
    (directory / "proc/meminfo").write_text(PROC[1].format(available=available >> 10))
    return str(directory / "proc")


def test_weights_come_into_memory_and_nothing_else(model: Path) -> None:
    told: list[tuple[int, str]] = []
    readahead.begin(str(model), lambda *line: told.append(line)).join(60)
    assert [round(in_memory(model / f"model-{n}.safetensors"), 2) for n in (1, 2)] == [1.0, 1.0]
    assert in_memory(model / "optimizer.bin") < 0.5
    [(priority, line)] = told
    assert priority == INFO and line.startswith("read 0.05 GiB of the weights ahead, in ")


def test_what_is_in_memory_already_costs_next_to_nothing(model: Path) -> None:
    assert readahead.read(str(model)) == 2 * SIZE
    before = time.thread_time()
    assert readahead.read(str(model)) == 0
    assert time.thread_time() - before < 0.02


def test_half_of_the_memory_that_is_available(model: Path, tmp_path: Path) -> None:
    assert readahead.read(str(model), proc(tmp_path, available=3 * SIZE)) == SIZE + SIZE // 2
    assert in_memory(model / "model-2.safetensors") < 0.8


def test_half_of_what_the_unit_may_still_take(model: Path, tmp_path: Path) -> None:
    """A unit with `memory_max` pays for what is read ahead; on a machine with more, that would throw itself out."""
    machine, unit = Path(proc(tmp_path)), tmp_path / "cgroups/unit"
    (machine / "self/cgroup").write_text("0::/unit\n")
    unit.mkdir(parents=True)
    (unit / "memory.max").write_text(f"{2 * SIZE}\n")
    (unit / "memory.current").write_text(f"{2 * SIZE}\n")
    (unit / "memory.stat").write_text(f"anon 7\nactive_file {SIZE // 2}\ninactive_file {SIZE // 2}\n")
    assert readahead.read(str(model), str(machine), str(tmp_path / "cgroups")) == SIZE // 2
    (unit / "memory.max").write_text("max\n")
    assert readahead.read(str(model), str(machine), str(tmp_path / "cgroups")) > SIZE


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.s3fs"])
def test_nothing_over_a_network(model: Path, tmp_path: Path, kind: str) -> None:
    assert readahead.read(str(model), proc(tmp_path, kind=kind)) == 0


def test_an_index_says_what_is_loaded(model: Path) -> None:
    index = {"weight_map": {"a": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert readahead.read(str(model)) == SIZE
    (model / "model.safetensors.index.json").write_text("torn")
    assert readahead.read(str(model)) == SIZE  # the other one


def test_a_model_that_is_not_there_is_for_vllm_to_say(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    readahead.begin(str(tmp_path / "none"), lambda *line: told.append(line)).join(60)
    assert told == []
