"""Fetches one model from a hub into a directory, with the hub's own client, and checks what came.

    fetch_hub.py huggingface|modelscope MODEL[@REVISION] DIRECTORY SPARE [whole|files] [CLIENT]

SPARE are bytes that must stay free on the disk, `files` leaves the weights out, CLIENT is a directory with the hub's
client where this Python has none. Prints JSON lines: `{"total": BYTES}` once, `{"checked": BYTES}` while it checks,
then `{"done": true, "revision": ...}` or `{"error": KIND, "message": ...}` with KIND of
`denied missing unreachable full room damaged client other` (`room` with `needed` and `free`). Endpoint, token, proxies
and certificates come in the client's own environment variables. A run that was cut is gone on with.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
# The same weights in other forms; vLLM reads safetensors. Left out only where safetensors are there.
OTHER_FORMS = ("*.bin", "*.pt", "*.pth", "*.ot", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite",
               "onnx/*", "openvino/*", "coreml/*", "original/*", "metal/*")  # fmt: skip
TRIES = 3
CHECKERS = 4  # threads: hashing 1.5 GB/s each, a disk gives a few of them work
BLOCK = 8 << 20
OF_ONE_RUN = re.compile(r"\.[0-9a-f]{8}\.incomplete$")


class File(NamedTuple):
    """What a hub says of a file; `sha256` is empty where it says none (small files), `size` None (some mirrors)."""

    size: int | None
    sha256: str


class Room(Exception):
    """The disk has not got the room: (needed, free)."""


class Damaged(Exception):
    """Files that came twice, and twice not as the hub describes them; a description that cannot be of a model."""


class Job(NamedTuple):
    """What is to be fetched, and where to."""

    model: str
    revision: str
    directory: str
    spare: int
    is_whole: bool


def unwanted(files: Sequence[str], is_whole: bool = True) -> list[str]:
    """The patterns of what need not be fetched."""
    if not is_whole:
        return [*WEIGHTS, *OTHER_FORMS]
    weights = [name for name in files if name.endswith(".safetensors")]
    if not weights:
        return []
    patterns = list(OTHER_FORMS)
    if any(fnmatch.fnmatch(name, "model*.safetensors") for name in weights):
        patterns.append("consolidated*.safetensors")
    return patterns


def huggingface(job: Job) -> str:
    """Fetch from the Hugging Face hub or its mirror; the revision that was fetched."""
    hub = import_module("huggingface_hub")
    info = hub.HfApi().model_info(job.model, revision=job.revision or None, files_metadata=True)
    files = {
        each.rfilename: File(each.size, str(getattr(getattr(each, "lfs", None), "sha256", None) or ""))
        for each in info.siblings or []
    }

    def fetch(skipped: Sequence[str]) -> None:
        hub.snapshot_download(
            job.model, revision=info.sha, local_dir=job.directory, ignore_patterns=list(skipped) or None
        )

    fetched(job, files, fetch)
    return str(info.sha)


def modelscope(job: Job) -> str:
    """Fetch from ModelScope or its mirror; the revision that was fetched."""
    hub = import_module("modelscope_hub")
    revision = job.revision or "master"
    listed = hub.HubApi().list_repo_files(job.model, "model", revision=revision, recursive=True)
    files = {
        str(each.path): File(None if each.size is None else int(each.size), str(each.sha256 or ""))
        for each in listed
        if each.type != "tree"
    }

    def fetch(skipped: Sequence[str]) -> None:
        hub.HubApi().download_repo(
            job.model, "model", revision=revision, local_dir=job.directory, ignore_patterns=list(skipped) or None
        )

    fetched(job, files, fetch)
    return revision


def fetched(job: Job, files: Mapping[str, File], fetch: Callable[[Sequence[str]], None]) -> None:
    """Fetch what is wanted of `files`, and once more what came damaged. Raises Room, Damaged."""
    skipped = unwanted(list(files), job.is_whole)
    wanted = {name: file for name, file in files.items() if not any(fnmatch.fnmatch(name, p) for p in skipped)}
    if not wanted:
        raise Damaged("the hub lists no files of it")
    for name in wanted:
        if name.startswith("/") or ".." in name.split("/"):  # what is damaged is deleted, but nothing of others
            raise Damaged(f"the hub lists {name!r}, which is no file of a model's directory")
    sizes = [file.size for file in wanted.values()]
    total = sum(size or 0 for size in sizes)
    say(total=None if None in sizes else total)
    sweep(job.directory)
    status = os.statvfs(job.directory)
    needed, free = max(total - held(job.directory), 0) + job.spare, status.f_bavail * status.f_frsize
    if needed > free:
        raise Room(needed, free)
    fetch(skipped)
    bad = damaged(job.directory, wanted)
    if bad:
        for name in bad:
            Path(job.directory, name).unlink(missing_ok=True)
        fetch(skipped)
        bad = damaged(job.directory, {name: wanted[name] for name in bad})
    if bad:
        raise Damaged(f"{bad[0]} is not what the hub describes" + (f", nor are {len(bad) - 1} more" * (len(bad) > 1)))


def sweep(directory: str) -> None:
    """Remove the parts that a killed client has left and no client goes on with: their names are of one run."""
    for path in Path(directory, ".cache").rglob("*.incomplete"):
        if OF_ONE_RUN.search(path.name):
            path.unlink(missing_ok=True)


def held(directory: str) -> int:
    """Bytes on the disk below a directory: what a cut run has left."""
    return sum(path.lstat().st_blocks * 512 for path in Path(directory).rglob("*"))


def damaged(directory: str, files: Mapping[str, File]) -> list[str]:
    """The files that are not there, or differ from what the hub says of them in length or hash."""
    done = 0

    def is_damaged(name: str) -> bool:
        nonlocal done
        size, sha256 = files[name]
        path = Path(directory, name)
        if not path.is_file() or size not in (None, path.stat().st_size):
            return True
        if not sha256:
            return False
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                done += len(block)
        say(checked=done)
        return digest.hexdigest() != sha256

    with ThreadPoolExecutor(CHECKERS) as pool:
        return [name for name, bad in zip(files, pool.map(is_damaged, files), strict=True) if bad]


def kind(error: BaseException) -> str:
    """The sort of a failure, by the names of the classes and the codes that clients raise."""
    if isinstance(error, Room):
        return "room"
    if isinstance(error, Damaged):
        return "damaged"
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    classes = {parent.__name__ for one in chain for parent in type(one).__mro__}
    codes = {getattr(getattr(one, "response", None), "status_code", None) for one in chain}
    codes |= {getattr(one, "status_code", None) for one in chain}
    if any(isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT) for one in chain):
        return "full"
    if classes & {"GatedRepoError", "AuthenticationError", "PermissionDeniedError"}:
        return "denied"
    missing = {
        "RepositoryNotFoundError",
        "RevisionNotFoundError",
        "HFValidationError",
        "NotFoundError",
        "NotExistError",
    }
    if classes & missing or 404 in codes:  # also with 401, which is how a hub hides what we may not know of
        return "missing"
    if codes & {401, 403}:
        return "denied"
    if isinstance(error, ModuleNotFoundError):
        return "client"
    names = {"ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError", "ConnectionError",
             "TimeoutError", "TransportError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "NetworkError",
             "RequestTimeoutError", "ServerError", "RateLimitError", "JSONDecodeError"}  # fmt: skip
    return "unreachable" if classes & names or any((code or 0) >= 500 for code in codes) else "other"


def say(**fields: Any) -> None:
    """One line for the parent."""
    print(json.dumps(fields), flush=True)


def main(source: str, model: str, directory: str, spare: str, part: str = "whole", client: str = "") -> int:
    """Fetch, trying again what a moment may mend."""
    if client:
        sys.path.insert(0, client)
    name, _, revision = model.partition("@")
    job = Job(name, revision, directory, int(spare), part == "whole")
    fetch = {"huggingface": huggingface, "modelscope": modelscope}[source]
    for attempt in range(TRIES):
        try:
            say(done=True, revision=fetch(job))
            return 0
        except Room as error:
            say(error="room", needed=error.args[0], free=error.args[1])
            return 1
        except Exception as error:
            sort = kind(error)
            if sort != "unreachable" or attempt == TRIES - 1:
                say(error=sort, message=str(error).strip().partition("\n")[0][:300] or type(error).__name__)
                return 1
        time.sleep(2.0**attempt)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
