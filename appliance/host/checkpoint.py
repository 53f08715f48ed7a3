"""What a checkpoint is made of, without its weights: config.json, and what each tensor takes.

From a directory, or from a hub by requests for the first bytes of each file: nothing of a model is downloaded but
headers, a few MiB for the largest. Every wait has a deadline; a server that answers a range with the whole file is read
no further than needed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from appliance import clock
from appliance.architecture import Architecture
from appliance.config.model import Config
from appliance.errors import Failed, Unreachable
from appliance.wire import modelconfig, safetensors
from appliance.wire.safetensors import Index, Tensor

from . import hubtoken, web

DEADLINE_S = 60.0  # for a whole model
SILENCE_S = 10.0  # for one answer
FIRST_BYTES = 256 << 10  # most headers of a file are shorter; a longer one costs a second request
MOST_HEADER = 32 << 20  # of one file, from a hub
MOST_FILES = 512
PARALLEL = 8
IDENTIFIER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?:@([A-Za-z0-9._-]+))?")
HUBS = {
    "huggingface": ("https://huggingface.co", "main"),
    "modelscope": ("https://modelscope.cn/models", "master"),
}
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One model's description. `tensors` is empty where only `total` (bytes of all, None: unknown) could be learned."""

    architecture: Architecture
    tensors: tuple[Tensor, ...]
    total: int | None
    source: str  # where the sizes come from, for people


# Gives the first bytes of a file of the checkpoint: (name, how many); None when there is no such file.
Read = Callable[[str, int], "bytes | None"]


def from_directory(directory: str) -> Checkpoint:
    """Read a model's directory. Raises Unreachable when it holds no config.json, Failed when a file is damaged."""

    def read(name: str, count: int) -> bytes | None:
        try:
            with open(os.path.join(directory, name), "rb") as file:
                return file.read(count)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreachable(f"{directory}/{name} cannot be read: {(error.strerror or '').lower()}") from error

    found = _read(read, directory)
    if not found.tensors and found.total is None:
        sizes = [path.stat().st_size for pattern in OTHER_WEIGHTS for path in Path(directory).glob(pattern)]
        if sizes:
            return Checkpoint(found.architecture, (), sum(sizes), "the size of the files")
    return found


def from_hub(model: str, config: Config, deadline_s: float = DEADLINE_S) -> Checkpoint:
    """Read the description of ORG/NAME[@REVISION] from the configured hub. Raises Unreachable, Failed; blocks
    `deadline_s` at most."""
    named = IDENTIFIER.fullmatch(model)
    if named is None or ".." in model:
        raise Unreachable(f"{model!r} is neither a hub's name (ORG/NAME) nor a directory", hint="check the spelling")
    base, revision = HUBS[config.models.source]
    base = (config.models.endpoint or base).rstrip("/")
    hub = _Hub(
        f"{base}/{named[1]}/resolve/{quote(named[2] or revision)}", model, config, clock.monotonic() + deadline_s
    )
    return _read(hub.read, model)


def _read(read: Read, where: str) -> Checkpoint:
    text = read("config.json", modelconfig.LARGEST + 1)
    if text is None:
        raise Unreachable(f"{where} has no config.json", hint="name a model in Hugging Face's form")
    with _damage(where, "config.json"):
        architecture = modelconfig.parse(text)
    listed = read(safetensors.INDEX_NAME, safetensors.LARGEST_INDEX + 1)
    index = Index((safetensors.SINGLE_NAME,), None)
    if listed is not None:
        with _damage(where, safetensors.INDEX_NAME):
            index = safetensors.index(listed)
    if len(index.files) > MOST_FILES:
        return Checkpoint(architecture, (), index.total, "the index of its files")
    try:
        tensors = _headers(read, index.files, where)
    except Unreachable:
        if index.total is None:
            raise
        return Checkpoint(architecture, (), index.total, "the index of its files")
    if tensors is None:
        return Checkpoint(architecture, (), index.total, "the index of its files")
    return Checkpoint(architecture, tensors, sum(tensor.size for tensor in tensors), "the headers of its files")


def _headers(read: Read, files: tuple[str, ...], where: str) -> tuple[Tensor, ...] | None:
    """The tensors of all files; None when a file is not there."""
    with concurrent.futures.ThreadPoolExecutor(PARALLEL, thread_name_prefix="headers") as pool:
        found = list(pool.map(lambda name: _header(read, name, where), files))
    if any(one is None for one in found):
        return None
    return tuple(tensor for one in found if one is not None for tensor in one)


def _header(read: Read, name: str, where: str) -> tuple[Tensor, ...] | None:
    first = read(name, FIRST_BYTES)
    if first is None:
        return None
    with _damage(where, name):
        end = safetensors.PREFIX + safetensors.header_length(first)
        if end > MOST_HEADER:
            raise ValueError(f"a header of {end} bytes")
        whole: bytes | None = first if end <= len(first) else read(name, end)
        if whole is None or len(whole) < end:
            raise ValueError("the file ends within its header")
        return safetensors.tensors(whole[safetensors.PREFIX : end])


@contextlib.contextmanager
def _damage(where: str, name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise Failed(f"{where}: {name} is damaged: {error}", hint="fetch the model again") from error


class _Hub:
    """Requests to one model's files. Safe for several threads."""

    def __init__(self, url: str, model: str, config: Config, deadline: float) -> None:
        self._url, self._model, self._deadline = url, model, deadline
        self._host = urlsplit(url).hostname or ""
        try:
            self._director = web.director(config.network.ca_file, web.proxies(config.network, self._host))
        except OSError as error:
            raise Unreachable(
                f"[network] ca_file {config.network.ca_file} cannot be used: {(error.strerror or '').lower()}",
                hint="it must be a file of PEM certificates that can be read",
            ) from error
        self._token = _token(config.models.token_file)

    def read(self, name: str, count: int) -> bytes | None:
        """The first `count` bytes of a file, fewer when it is shorter; None when the hub has none of that name."""
        request = urllib.request.Request(f"{self._url}/{quote(name)}", headers={"User-Agent": "llm-appliance"})
        request.add_header("Accept-Encoding", "identity")
        request.add_header("Range", f"bytes=0-{count - 1}")
        if self._token:  # not to where the hub sends us on for the file: its links carry their own right
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._director.open(request, timeout=self._left()) as response:
                return self._take(response, count)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404 and name != "config.json":
                return None
            raise self._refused(error.code) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._silent(getattr(reason, "strerror", None) or str(reason)) from error

    def _take(self, response: http.client.HTTPResponse, count: int) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            self._left()
            block = response.read1(min(count - len(taken), 1 << 16))
            if not block:
                break
            taken += block
        return bytes(taken)

    def _left(self) -> float:
        left = self._deadline - clock.monotonic()
        if left <= 0:
            raise self._silent("too slow")
        return min(left, SILENCE_S)

    def _silent(self, reason: str) -> Unreachable:
        return Unreachable(
            f"{self._model} cannot be looked up: {self._host} cannot be reached ({reason})",
            hint="check the network, [network] https_proxy and [models] endpoint, or name the model's directory",
        )

    def _refused(self, status: int) -> Unreachable:
        if status in (401, 403):
            return Unreachable(
                f"{self._host} does not give {self._model} to us (HTTP {status})",
                hint="check the spelling; accept the model's licence there and set [models] token_file",
            )
        if status == 404:
            return Unreachable(f"{self._host} has no model {self._model}", hint="check the spelling")
        return Unreachable(f"{self._host} answers with HTTP {status}", hint="try again later")


def _token(path: str) -> str:
    """The hub's token; empty where none is configured. Raises Unreachable when its file cannot be read."""
    if not path:
        return ""
    try:
        return hubtoken.read(path)
    except OSError as error:
        raise Unreachable(
            f"[models] token_file {path} cannot be read: {(error.strerror or '').lower()}", hint="run it as root (sudo)"
        ) from error
    except ValueError as error:
        raise Unreachable(f"[models] token_file {path}: {error}", hint="write it anew") from error
