"""Fetches files of known hash, several at once, and goes on where an earlier run was cut.

Each file is `NAME.part` until its length and its SHA-256 are right; only then it gets its name. A part survives a
crash, a stop and a lost connection: the next request asks for the rest (`Range`). A server that answers a range
request with the whole file, another length or other bytes costs time and nothing else.

An attempt after which no more lies on the disk than ever before is counted; one that brought more begins the count
anew. So a slow line may take as long as it needs, while a server that is dead, or begins again and again without coming
any further, is given up after ATTEMPTS tries, about two minutes.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import errno
import http.client
import os
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from appliance.errors import Failed
from appliance.host import web

from .resolve import Wheel, digest

PARALLEL = 8  # most files of a runtime are small: the wait is for answers, not for bytes
ATTEMPTS = 8
BACKOFF_S, BACKOFF_MAX_S = 1.0, 30.0
SILENCE_S = 20.0  # a connection that brings nothing for so long is dead; shorter than the unit's TimeoutStopSec=
BLOCK = 256 << 10
WRONG_BYTES_ATTEMPTS = 2  # a file whose hash is wrong twice will be wrong a third time
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT}
RETRIED = {408, 425, 429, 500, 502, 503, 504}

Opener = Callable[[urllib.request.Request, float], http.client.HTTPResponse]


class _Again(Exception):
    """This attempt failed in a way that another may not; the text is the reason. `pause_s` is the server's wish,
    `wrong` says that all bytes came and were not the right ones."""

    def __init__(self, reason: str, *, pause_s: float | None = None, wrong: bool = False) -> None:
        super().__init__(reason)
        self.pause_s = pause_s
        self.wrong = wrong


class Meter:
    """Bytes of a whole download, counted by several threads. `total` grows when a length is learned on the way."""

    def __init__(self, wheels: Sequence[Wheel]) -> None:
        self._lock = threading.Lock()
        self._have: dict[str, int] = {wheel.filename: 0 for wheel in wheels}
        self._size: dict[str, int | None] = {wheel.filename: wheel.size for wheel in wheels}

    def put(self, filename: str, have: int, size: int | None = None) -> None:
        """Bytes of one file that lie on the disk now."""
        with self._lock:
            self._have[filename] = have
            if size is not None:
                self._size[filename] = size

    def read(self) -> tuple[int, int | None]:
        """(bytes here, bytes in all); the latter None while a length is unknown."""
        with self._lock:
            sizes = list(self._size.values())
            known = [size for size in sizes if size is not None]
            return sum(self._have.values()), sum(known) if len(known) == len(sizes) else None


def opener(index_url: str = "", cafile: str = "") -> Opener:
    """Opens URLs through the proxies of the environment. Credentials of `index_url` go to that host alone."""
    director = web.director(cafile)
    parts = urlsplit(index_url)
    secret = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        secret = "Basic " + base64.b64encode(pair.encode()).decode()

    def open_(request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
        if secret and urlsplit(request.full_url).hostname == parts.hostname:
            request.add_unredirected_header("Authorization", secret)
        response: http.client.HTTPResponse = director.open(request, timeout=timeout_s)
        return response

    return open_


def fetch_all(
    wheels: Sequence[Wheel], directory: Path, meter: Meter, open_: Opener, backoff_s: float = BACKOFF_S
) -> None:
    """Fetch every wheel into `directory`; blocks until all are there and right. Raises Failed with the first reason.

    When it is left early, for a failure or a signal, the other threads stop within SILENCE_S and parts stay.
    """
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(PARALLEL, thread_name_prefix="download") as pool:
        try:
            # The longest first: else one big file is still on its way when all others are done.
            ordered = sorted(wheels, key=lambda wheel: -(wheel.size or 0))
            waiting = {pool.submit(fetch, wheel, directory, meter, open_, stop, backoff_s) for wheel in ordered}
            while waiting:  # with a timeout, so that a signal is noticed
                done, waiting = concurrent.futures.wait(waiting, 1.0, concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def fetch(
    wheel: Wheel,
    directory: Path,
    meter: Meter,
    open_: Opener,
    stop: threading.Event,
    backoff_s: float = BACKOFF_S,
) -> None:
    """Fetch one file; the pause after a fruitless attempt begins at `backoff_s` and doubles. Raises Failed."""
    target, part = directory / wheel.filename, directory / f"{wheel.filename}.part"
    if target.exists() and digest(str(target)) == wheel.sha256:
        meter.put(wheel.filename, target.stat().st_size, target.stat().st_size)
        return
    target.unlink(missing_ok=True)
    fruitless = wrong = 0
    most = _length(part)
    while not stop.is_set():
        try:
            _attempt(wheel, part, meter, open_, stop)
            if stop.is_set():
                return
            _check(wheel, part)
            os.replace(part, target)
            return
        except _Again as again:
            wrong += again.wrong
            fruitless = 0 if _length(part) > most else fruitless + 1
            most = 0 if again.wrong else max(most, _length(part))
            if fruitless >= ATTEMPTS or wrong >= WRONG_BYTES_ATTEMPTS:
                raise _failure(wheel, str(again)) from again
            pause_s = backoff_s * 2 ** (fruitless - 1) if again.pause_s is None else again.pause_s
            stop.wait(min(pause_s, BACKOFF_MAX_S) if fruitless or again.pause_s else 0.0)


def _failure(wheel: Wheel, reason: str) -> Failed:
    return Failed(
        f"{wheel.filename} cannot be downloaded from {urlsplit(wheel.url).hostname}: {reason}",
        hint="check the network, [network] https_proxy and ca_file; the next start goes on where this one ended",
    )


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _attempt(wheel: Wheel, part: Path, meter: Meter, open_: Opener, stop: threading.Event) -> None:
    """One request for what is missing; returns when the part has its length, or `stop` was set."""
    have = _length(part)
    if wheel.size is not None and have > wheel.size:
        part.unlink()
        have = 0
    meter.put(wheel.filename, have)
    if wheel.size is not None and have == wheel.size:
        return
    with _translated(wheel, part), _open(wheel, have, open_) as response:
        start, size = _extent(response, have, wheel)
        if start is None:
            part.unlink(missing_ok=True)
            raise _Again("the server lost the beginning of the file")
        meter.put(wheel.filename, start, size)
        with open(part, "r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            _copy(response, file.write, wheel, meter, start, size, stop)
    if not stop.is_set() and size is not None and _length(part) < size:
        # http.client ends a cut body without an error when it is read in blocks.
        raise _Again(f"the connection ended after {_length(part)} of {size} bytes")


def _open(wheel: Wheel, have: int, open_: Opener) -> http.client.HTTPResponse:
    parts = urlsplit(wheel.url)
    clean = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
    headers = {"Accept-Encoding": "identity", "User-Agent": "llm-appliance"}
    if have:
        headers["Range"] = f"bytes={have}-"
    return open_(urllib.request.Request(clean, headers=headers), SILENCE_S)


def _extent(response: http.client.HTTPResponse, have: int, wheel: Wheel) -> tuple[int | None, int | None]:
    """(first byte that this answer brings, whole length or None); the first is None when the part is of no use."""
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
        total = int(match[2]) if match is not None and match[2] != "*" else None
        if match is None or int(match[1]) != have or (wheel.size is not None and total not in (None, wheel.size)):
            return None, None
        return have, total or wheel.size
    length = response.headers.get("Content-Length", "")
    stated = int(length) if length.isdecimal() else None
    if wheel.size is not None and stated is not None and stated != wheel.size:
        raise _Again(f"the server offers {stated} bytes instead of {wheel.size}")
    return 0, stated if wheel.size is None else wheel.size


def _copy(
    response: http.client.HTTPResponse,
    write: Callable[[bytes], int],
    wheel: Wheel,
    meter: Meter,
    start: int,
    size: int | None,
    stop: threading.Event,
) -> None:
    have = start
    while not stop.is_set() and have != size:
        # What has come, and no waiting for a whole block: on a slow line that takes longer than a stop may, and is lost
        # when the line breaks.
        block = response.read1(BLOCK)
        if not block:
            return
        have += len(block)
        if size is not None and have > size:
            write(block[: len(block) - (have - size)])
            return
        write(block)
        meter.put(wheel.filename, have)


@contextlib.contextmanager
def _translated(wheel: Wheel, part: Path) -> Iterator[None]:
    """Foreign errors become another try or the end."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            part.unlink(missing_ok=True)
            raise _Again("the server lost the beginning of the file") from error
        if error.code not in RETRIED:
            raise _failure(wheel, f"HTTP {error.code} {error.reason}") from error
        wish = error.headers.get("Retry-After", "")
        pause_s = float(wish) if wish.isdecimal() else None
        raise _Again(f"HTTP {error.code} {error.reason}", pause_s=pause_s) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _failure(wheel, f"its certificate is not trusted: {error.reason.verify_message}") from error
        raise _Again(str(error.reason)) from error
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise Failed(f"{part} cannot be written: {error.strerror}", hint="see df and ls -ld") from error
        raise _Again(str(error) or type(error).__name__) from error


def _check(wheel: Wheel, part: Path) -> None:
    """The right bytes, or the part goes away."""
    if digest(str(part)) != wheel.sha256:
        part.unlink(missing_ok=True)
        raise _Again("its bytes are not those that this release was tested with (SHA-256)", wrong=True)
