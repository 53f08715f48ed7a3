"""Trials that take longer than a look: GPUs that work together, in pairs, and the disk that models are read from.

Each runs in children with a deadline. What two GPUs do is done by the runtime's own torch
(`runtime/inside/allreduce.py`), as the engines' user where this process may become it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from appliance import names
from appliance.gpufacts import COPY, NCCL, WITHOUT_P2P, ReadSpeed, Tried
from appliance.host import ownprogram
from appliance.host.access import account
from appliance.host.command import Late, Silent, output_of
from appliance.quantity import UNKNOWN, Maybe

PROGRAM = Path(__file__).resolve().parents[2] / "runtime/inside/allreduce.py"
TRIAL_S = 60.0  # importing torch takes some of it; a link that works needs a second
READ_BYTES, READ_S = 2 << 30, 5.0
MOST_BYTES = 1 << 16


async def try_links(
    python: str,
    uuids: Sequence[str],
    pairs: Iterable[tuple[int, int]],
    note: Callable[[str], None],
    *,
    backend: str = NCCL,
    trial_s: float = TRIAL_S,
) -> tuple[Tried, ...]:
    """All trials of all pairs, pairs without a GPU in common at the same time. `python` is the runtime's."""
    found: list[Tried] = []
    for turn in rounds(pairs):
        note("trying GPUs " + ", ".join(f"{one}-{other}" for one, other in turn))
        alike = (_pair(python, (uuids[one], uuids[other]), (one, other), backend, trial_s) for one, other in turn)
        for tried in await asyncio.gather(*alike):
            found += tried
    return tuple(found)


def rounds(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Pairs parted so that none of a round shares a GPU with another."""
    made: list[list[tuple[int, int]]] = []
    for pair in sorted(pairs):
        fits = next((turn for turn in made if not {gpu for each in turn for gpu in each} & set(pair)), None)
        if fits is None:
            made.append([pair])
        else:
            fits.append(pair)
    return made


async def _pair(
    python: str, uuids: tuple[str, str], pair: tuple[int, int], backend: str, trial_s: float
) -> list[Tried]:
    """NCCL as an engine would use it, a copy as vLLM's own all-reduce does it; without P2P where NCCL does not work."""
    tried = [await _all_reduce(python, uuids, pair, backend, trial_s, {})]
    if backend == NCCL:
        tried.append(await _copy(python, uuids, pair, trial_s))
    if tried[0].outcome != "works":
        tried.append(await _all_reduce(python, uuids, pair, backend, trial_s, {"NCCL_P2P_DISABLE": "1"}))
    return tried


async def _all_reduce(
    python: str, uuids: tuple[str, str], pair: tuple[int, int], backend: str, trial_s: float, env: dict[str, str]
) -> Tried:
    way = WITHOUT_P2P if env else NCCL
    directory = tempfile.mkdtemp(prefix="llm-doctor-")
    try:
        user = _user_of(directory)
        ranks = (
            output_of(
                (python, "-I", str(PROGRAM), backend, str(rank), "2", f"{directory}/meeting"), trial_s, MOST_BYTES,
                more={**_environment(uuids, directory), **env}, user=user,
            )
            for rank in range(2)
        )  # fmt: skip
        answers = await asyncio.gather(*ranks, return_exceptions=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return _tried(pair, way, answers)


async def _copy(python: str, uuids: tuple[str, str], pair: tuple[int, int], trial_s: float) -> Tried:
    directory = tempfile.mkdtemp(prefix="llm-doctor-")
    try:
        user = _user_of(directory)
        words = (python, "-I", str(PROGRAM), COPY)
        asked = output_of(words, trial_s, MOST_BYTES, more=_environment(uuids, directory), user=user)
        answers = await asyncio.gather(asked, return_exceptions=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return _tried(pair, COPY, answers)


def _user_of(directory: str) -> str:
    """Whose rights a trial has; the directory becomes that user's."""
    who = account(names.ENGINE_USER) if os.geteuid() == 0 else None
    if who is None:
        return ""
    os.chown(directory, who.uid, -1)
    return names.ENGINE_USER


def _environment(uuids: tuple[str, str], directory: str) -> dict[str, str]:
    """As an engine's (`wire/vllmargs`): PCI order, loopback, nothing left outside the trial's own directory."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(uuids), "HOME": directory,
        "TMPDIR": directory, "XDG_CACHE_HOME": directory, "CUDA_CACHE_PATH": directory, "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def _tried(pair: tuple[int, int], way: str, answers: Sequence[bytes | BaseException]) -> Tried:
    """What the processes of one trial amount to: the worst of them."""
    speed: Maybe[float] = UNKNOWN
    for answer in answers:
        if isinstance(answer, Late):
            return Tried(pair=pair, way=way, outcome="hangs", detail=f"killed after {TRIAL_S:.0f} s")
    for answer in answers:
        if isinstance(answer, Silent):
            return Tried(pair=pair, way=way, outcome="fails", detail=str(answer))
        if isinstance(answer, BaseException):
            raise answer
        try:
            told = json.loads(answer.splitlines()[-1])
        except (ValueError, IndexError):
            return Tried(pair=pair, way=way, outcome="fails", detail="it ended without a word")
        if told.get("error"):
            return Tried(pair=pair, way=way, outcome="fails", detail=str(told["error"]))
        if told.get("right") is not True:
            return Tried(pair=pair, way=way, outcome="wrong", detail="the numbers that arrived are not those sent")
        speed = float(told.get("bytes_s", 0.0))
    return Tried(pair=pair, way=way, outcome="works", bytes_s=speed)


async def read_speed(path: str) -> ReadSpeed:
    """How fast the largest file below a model's directory is read. Raises Silent, Late, OSError."""
    large = max((entry for entry in os.scandir(path) if entry.is_file()), key=lambda entry: entry.stat().st_size)
    words = ("-m", "appliance.host.checkup.readspeed", large.path, str(READ_BYTES), f"{READ_S:g}")
    raw = await output_of((*ownprogram.python(), *words), 3 * READ_S, MOST_BYTES, more=ownprogram.modules())
    told = json.loads(raw)
    return ReadSpeed(path=large.path, read=told["read"], seconds=told["seconds"], direct=told["direct"])
