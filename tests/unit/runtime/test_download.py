"""The downloader against a server that cuts, lies and forgets: right bytes in the end, or a sentence."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import Failed
from appliance.runtime.download import ATTEMPTS, Meter, fetch, fetch_all, opener
from appliance.runtime.resolve import Wheel
from tests.support.fileserver import BLOCK, FileServer, Script, file_server
from tests.support.waiting import wait_until

BODY = random.Random(1).randbytes(200_000)
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as served:
        yield served


def take(wanted: Wheel, directory: Path, meter: Meter | None = None, index_url: str = "") -> None:
    """`fetch` with pauses of milliseconds."""
    fetch(wanted, directory, meter or Meter([wanted]), opener(index_url), threading.Event(), backoff_s=0.001)


def wheel(server: FileServer, *faults: str, size: int | None = len(BODY), ranges: bool = True) -> Wheel:
    server.files["/a.whl"] = Script(BODY, list(faults), ranges)
    return Wheel("a.whl", f"{server.url}/a.whl", SHA, size)


def get(wanted: Wheel, directory: Path) -> Meter:
    meter = Meter([wanted])
    take(wanted, directory, meter)
    assert (directory / "a.whl").read_bytes() == BODY
    assert not (directory / "a.whl.part").exists()
    return meter


@pytest.mark.parametrize("size", [len(BODY), None])
@pytest.mark.parametrize(
    "faults",
    [
        (),
        ("cut",),
        ("reset",),
        ("cut", "cut", "cut", "cut", "cut", "cut", "cut", "cut", "cut", "cut"),  # each brings something: no end
        ("503", "500", "429"),
        ("wrong-bytes",),
        ("cut", "ignore-range"),
        ("cut", "wrong-range"),
        ("cut", "416"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
def test_faults_that_pass(server: FileServer, tmp_path: Path, faults: tuple[str, ...], size: int | None) -> None:
    meter = get(wheel(server, *faults, size=size), tmp_path)
    assert meter.read() == (len(BODY), len(BODY))
    assert server.files["/a.whl"].faults == []


def test_a_length_that_is_a_lie_is_seen_before_the_bytes_are_taken(server: FileServer, tmp_path: Path) -> None:
    get(wheel(server, "long-length"), tmp_path)
    assert len(server.seen) == 2


def test_goes_on_where_it_was_cut(server: FileServer, tmp_path: Path) -> None:
    get(wheel(server, "cut"), tmp_path)
    assert [seen[1] for seen in server.seen] == [None, f"bytes={len(BODY) // 2}-"]
    assert server.sent == len(BODY)


def test_a_part_of_an_earlier_run_is_used(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(BODY[:150_000])
    get(wheel(server), tmp_path)
    assert server.sent == 50_000


@pytest.mark.parametrize("part", [BODY + b"more", b"\0" * 1000, BODY], ids=["longer", "rotten", "whole"])
def test_any_part_ends_in_the_right_file(server: FileServer, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "a.whl.part").write_bytes(part)
    get(wheel(server), tmp_path)


def test_a_whole_part_of_unknown_length(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(BODY)
    get(wheel(server, size=None), tmp_path)


def test_a_file_that_is_there_costs_no_request(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(BODY)
    get(wheel(server), tmp_path)
    assert server.seen == []


def test_a_file_with_other_bytes_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"x" * len(BODY))
    get(wheel(server), tmp_path)


def test_wrong_bytes_twice_is_the_end(server: FileServer, tmp_path: Path) -> None:
    wanted = wheel(server, "wrong-bytes", "wrong-bytes", "wrong-bytes")
    with pytest.raises(Failed, match=r"a\.whl .*not those that this release was tested with"):
        take(wanted, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(server.seen) == 2


def test_what_is_refused_is_not_asked_again(server: FileServer, tmp_path: Path) -> None:
    wanted = wheel(server, "403", "403")
    with pytest.raises(Failed, match=r"127\.0\.0\.1: HTTP 403"):
        take(wanted, tmp_path)
    assert len(server.seen) == 1


def test_a_dead_server_is_given_up_and_the_part_stays(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "a.whl.part").write_bytes(BODY[:1000])
    wanted = wheel(server, *["503"] * 50)
    with pytest.raises(Failed, match="503") as caught:
        take(wanted, tmp_path)
    assert "goes on where this one ended" in caught.value.hint
    assert (tmp_path / "a.whl.part").read_bytes() == BODY[:1000]
    assert len(server.seen) == ATTEMPTS


def test_a_server_that_always_begins_again_and_comes_no_further_is_given_up(server: FileServer, tmp_path: Path) -> None:
    """A proxy that takes ranges out and cuts after a time: never twice at the same byte."""
    wanted = wheel(server, *[f"cut-at-{50_000 + 1000 * (number % 3)}" for number in range(50)], ranges=False)
    with pytest.raises(Failed, match=r"ended after \d+ of 200000 bytes"):
        take(wanted, tmp_path)
    assert len(server.seen) <= 2 * ATTEMPTS


def test_one_that_begins_again_and_comes_further_is_not(server: FileServer, tmp_path: Path) -> None:
    get(wheel(server, *[f"cut-at-{10_000 * number}" for number in range(1, 20)], ranges=False), tmp_path)


def test_each_byte_is_kept_as_it_comes(server: FileServer, tmp_path: Path) -> None:
    """A server that goes on only when what it sent lies on the disk: a stop or a broken line loses next to nothing."""

    def kept() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    server.on_block = lambda sent: wait_until(lambda: kept() >= sent - BLOCK, 5.0, "what was sent", 0.001)
    get(wheel(server), tmp_path)
    assert len(server.seen) == 1  # it never lost its patience


def test_a_directory_that_cannot_be_written_is_said(server: FileServer, tmp_path: Path) -> None:
    wanted = wheel(server)
    with pytest.raises(Failed, match="cannot be written"):
        take(wanted, tmp_path / "missing")


def test_many_files_at_once_and_the_first_failure_ends_all(server: FileServer, tmp_path: Path) -> None:
    wanted = []
    for number in range(9):
        body = random.Random(number).randbytes(30_000 * (number + 1))
        server.files[f"/{number}"] = Script(body, ["cut"] if number % 2 else [])
        sha = hashlib.sha256(body).hexdigest()
        wanted.append(Wheel(f"{number}.whl", f"{server.url}/{number}", sha, len(body)))
    meter = Meter(wanted)
    fetch_all(wanted, tmp_path, meter, opener())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{number}.whl" for number in range(9)]
    total = sum(one.size or 0 for one in wanted)
    assert meter.read() == (total, total)

    with pytest.raises(Failed, match="404"):
        fetch_all([*wanted, Wheel("x.whl", f"{server.url}/x", SHA, 1)], tmp_path, meter, opener())


def test_credentials_go_to_the_index_host_alone_and_are_not_shown(server: FileServer, tmp_path: Path) -> None:
    wanted = wheel(server, "403")
    host = server.url.removeprefix("http://")
    with_secret = Wheel("a.whl", f"http://bob:s3cret@{host}/a.whl", SHA, len(BODY))
    with pytest.raises(Failed) as caught:
        take(with_secret, tmp_path, index_url=f"http://bob:s3cret@{host}/simple")
    assert "s3cret" not in f"{caught.value.message} {caught.value.hint}"
    take(wanted, tmp_path, index_url="http://bob:s3cret@elsewhere.invalid/simple")
    assert [seen[2] for seen in server.seen] == ["Basic Ym9iOnMzY3JldA==", None]


def test_a_stop_leaves_the_part(server: FileServer, tmp_path: Path) -> None:
    wanted = wheel(server)
    stop = threading.Event()
    server.on_block = lambda sent: stop.set() if sent > 60_000 else None
    fetch(wanted, tmp_path, Meter([wanted]), opener(), stop)
    assert not (tmp_path / "a.whl").exists()
    assert BODY.startswith((tmp_path / "a.whl.part").read_bytes())
