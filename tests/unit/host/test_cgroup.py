from __future__ import annotations

from pathlib import Path

from appliance.host.cgroup import read
from appliance.quantity import UNKNOWN
from appliance.samples import Cgroup

GROUP = "/system.slice/llm-engine@chat.service"


def group(root: Path, **files: str) -> None:
    directory = root / GROUP.lstrip("/")
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)


def test_a_group(tmp_path: Path) -> None:
    group(
        tmp_path,
        memory_events="low 0\nhigh 3\nmax 17\noom 1\noom_kill 1\noom_group_kill 0\n",
        memory_current="3221225472\n",
        memory_peak="4294967296\n",
        io_stat="8:0 rbytes=1000 wbytes=5 rios=1 wios=1 dbytes=0 dios=0\n259:1 rbytes=24 wbytes=0\n",
    )
    assert read(GROUP, 7.0, cgroups=str(tmp_path)) == Cgroup(
        t=7.0,
        events={"low": 0, "high": 3, "max": 17, "oom": 1, "oom_kill": 1, "oom_group_kill": 0},
        current_gib=3.0,
        peak_gib=4.0,
        read_bytes=1024,
    )


def test_what_an_old_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    group(tmp_path, memory_events="oom_kill 0\n", memory_current="max\n")
    found = read(GROUP, 7.0, cgroups=str(tmp_path))
    assert (found.current_gib, found.peak_gib, found.read_bytes) == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert found.events == {"oom_kill": 0} and found.error == ""


def test_nothing_read_yet_is_no_bytes(tmp_path: Path) -> None:
    group(tmp_path, memory_events="", io_stat="")
    assert read(GROUP, 7.0, cgroups=str(tmp_path)).read_bytes == 0


def test_a_group_that_is_gone(tmp_path: Path) -> None:
    assert read(GROUP, 7.0, cgroups=str(tmp_path)) == Cgroup(
        t=7.0, error="cannot read memory.events: No such file or directory"
    )
