"""The box itself: it must be right before what runs in it is judged."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box, BoxError, processes
from box.machine import STOP_LIMIT, has_layer
from box.places import place

from tests.support.waiting import wait_until

CLIENT = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123/x').read().decode())"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box.start("bookworm", network="private") as box:
        yield box


def test_systemd_runs_in_it(box: Box) -> None:
    assert box.sh("systemctl is-system-running --wait").out.strip() == "running"  # a box is there before its last jobs
    assert box.sh("stat -f -c %T /sys/fs/cgroup").out.strip() == "cgroup2fs"


def test_a_command_s_status_and_both_streams(box: Box) -> None:
    result = box.sh("echo out; echo err >&2; exit 3", check=False)
    assert (result.status, result.out) == (3, "out\nerr\n")
    with pytest.raises(BoxError, match="status 3"):
        box.sh("exit 3")


def test_a_command_has_a_deadline(box: Box) -> None:
    began = time.monotonic()
    assert box.sh("sleep 60 | cat", timeout=0.5, check=False).status is None
    assert time.monotonic() - began < 30
    look = "grep -sl sleep /proc/[0-9]*/comm"  # what was killed is there until the box's PID 1 has reaped it
    wait_until(lambda: box.sh(look, check=False).out.strip() == "", 20, "nothing of it is left")


def test_what_a_package_must_bring_is_not_in_the_base(box: Box) -> None:
    assert box.sh("python3 -c 'import ensurepip'", check=False).status != 0
    assert box.sh("ls /usr/lib/x86_64-linux-gnu/libnuma.so.1", check=False).status != 0


def test_files_in_and_out(box: Box, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_text("a")
    box.put(tmp_path / "tree", "/srv/tree")
    assert box.sh("stat -c '%U %n' /srv/tree/a && cat /srv/tree/a").out == "root /srv/tree/a\na"
    box.get("/srv/tree", tmp_path / "back")
    assert (tmp_path / "back/a").read_text() == "a"


def test_two_boxes_on_the_same_port(box: Box) -> None:
    """Each has its own network, and a program of the host can enter it."""
    with Box.start("bookworm", network="private") as other:
        for one, text in ((box, "first"), (other, "second")):
            one.write("/srv/www/x", text)
            one.sh("systemd-run -q --unit=www python3 -m http.server 8123 -d /srv/www --bind 127.0.0.1")
            one.sh("until (echo > /dev/tcp/127.0.0.1/8123) 2>/dev/null; do sleep 0.05; done", timeout=60)
        for one, text in ((box, "first"), (other, "second")):
            assert one.outside([sys.executable, "-c", CLIENT]).out.strip() == text


def test_a_command_is_found_and_ended_in_its_first_instant(box: Box) -> None:
    for _ in range(100):
        late = subprocess.Popen(box.argv("exec sleep 100"), start_new_session=True)
        processes.kill_entered(box.leader)
        late.wait(20)


def test_a_reboot_keeps_the_disk_and_a_late_command_does_not_hold_it_up(box: Box) -> None:
    box.write("/srv/kept", "kept")
    before = box.sh("cat /proc/sys/kernel/random/boot_id; systemctl show -P UserspaceTimestampMonotonic").out
    late = subprocess.Popen(box.argv("exec sleep 100"), start_new_session=True)
    began = time.monotonic()
    box.reboot()
    late.wait(10)
    assert time.monotonic() - began < STOP_LIMIT / 2
    assert box.read("/srv/kept") == "kept"
    assert box.sh("systemctl show -P UserspaceTimestampMonotonic").out not in before


def test_layers_and_nothing_left() -> None:
    lower = f"test-lower-{time.monotonic_ns() % 10**9}"
    box = Box.start("bookworm", network="private")
    box.write("/srv/keep/a", "a")
    box.write("/srv/drop", "b")
    box.snapshot(lower, only=("/srv/keep",))
    try:
        assert has_layer("bookworm", lower)
        with Box.start("bookworm", [lower], network="private") as upper:
            assert upper.read("/srv/keep/a") == "a"
            assert not upper.path("/srv/drop").exists()
            upper.write("/srv/keep/a", "changed")
            directory = upper.directory
        assert not directory.exists()
        assert upper.name not in Path("/proc/mounts").read_text()
        assert not list(Path("/sys/fs/cgroup").glob(f"*/box-{upper.name}"))
        assert (place("layers", lower) / "tree/srv/keep/a").read_text() == "a"
    finally:
        subprocess.run(["rm", "-r", str(place("layers", lower))], check=True)
