"""What is installed: packages of the driver, compilers, the vLLM runtime, our users, the models and the journal."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
from pathlib import Path

from appliance import names
from appliance.config.model import Config
from appliance.host import files, modelstore, runtimes
from appliance.host.command import Silent, output_of
from appliance.hostfacts import Account, Journal, ModelFiles, Packages, Runtime, Toolchain
from appliance.quantity import UNKNOWN, Maybe
from appliance.wire import aptstate

DPKG_STATUS = "/var/lib/dpkg/status"
APT_S = 4.0
MOST_BYTES = 1 << 20
COMPILERS = (("cc", "gcc", "clang"), ("c++", "g++", "clang++"))
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


async def packages(status: str = DPKG_STATUS) -> Packages:
    """The driver's packages and what may replace them. Raises OSError where dpkg is not at home."""
    found = tuple(aptstate.driver_packages(Path(status).read_text(errors="replace")))
    try:
        dump = (await output_of(("apt-config", "dump"), APT_S, MOST_BYTES)).decode("utf-8", "replace")
    except Silent:
        dump = ""
    return Packages(
        driver={package.name: package.version for package in found},
        held=frozenset(package.name for package in found if package.held),
        unattended=aptstate.is_unattended(dump) if dump else UNKNOWN,
        spared=aptstate.spared(dump),
    )


def toolchain(runtime: str, python: str, usr: str = "/usr") -> Toolchain:
    """Compilers where an engine of that runtime looks for them (`wire/vllmargs`)."""
    path = f"{runtime}/bin:{usr}/local/cuda/bin:{usr}/local/bin:{usr}/bin"
    c, cxx = (next((found for name in group if (found := shutil.which(name, path=path))), "") for group in COMPILERS)
    return Toolchain(
        c=c, cxx=cxx, ninja=shutil.which("ninja", path=path) or "", nvcc=shutil.which("nvcc", path=path) or "",
        python=python, header=_header(runtime, python, usr),
    )  # fmt: skip


def _header(runtime: str, python: str, usr: str) -> Maybe[bool]:
    """Python.h of the interpreter that the runtime was made with."""
    if not python:
        return UNKNOWN
    real = Path(os.path.realpath(f"{runtime}/bin/python"))
    prefixes = (real.parent.parent, Path(usr), Path(usr, "local"))
    return any((prefix / "include" / f"python{python}" / "Python.h").exists() for prefix in prefixes)


def runtime(state: str, run_state: str) -> Runtime:
    """The active environment below `state`, and what its builder says; `name` is empty where none is active."""
    active = next((one for one in runtimes.installed(f"{state}/runtimes") if one.current), None)
    told = files.read_json(run_state) or {}
    builder = {"builder": str(told.get("phase") or ""), "message": str(told.get("message") or "")}
    if active is None:
        return Runtime(**builder)  # type: ignore[arg-type]
    return Runtime(
        name=active.name, version=active.version, device=active.device, complete=active.complete,
        usable=active.usable, cuda=_cuda(active.path), builder=builder["builder"], message=builder["message"],
    )  # fmt: skip


def python_of(state: str) -> str:
    """The Python of the active environment, major.minor; empty where none is active."""
    return next((one.python for one in runtimes.installed(f"{state}/runtimes") if one.current), "")


def _cuda(path: str) -> str:
    """What torch says it was built for; empty for a CPU's."""
    for found in Path(path, "lib").glob("python3*/site-packages/torch/version.py"):
        match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", found.read_text(errors="replace"), re.MULTILINE)
        return match[1] if match else ""
    return ""


def accounts() -> tuple[Account, ...]:
    """Those of our users that exist."""
    found = []
    for name in (names.GATEWAY_USER, names.ENGINE_USER, names.SUPERVISOR_USER, names.RUNTIME_USER):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        groups = {group.gr_name for group in grp.getgrall() if name in group.gr_mem or group.gr_gid == user.pw_gid}
        found.append(Account(name=name, uid=user.pw_uid, groups=frozenset(groups), shell=user.pw_shell))
    return tuple(found)


def models(config: Config, root: str) -> tuple[ModelFiles, ...]:
    """Every configured model of this machine's engines."""
    found = []
    for model in modelstore.configured(config, root):
        standing = modelstore.standing(model)
        size = _size(model.path) if standing == modelstore.READY else UNKNOWN
        found.append(
            ModelFiles(model=model.model, path=model.path, engines=model.engines, standing=standing, size=size)
        )
    return tuple(found)


def _size(path: str) -> Maybe[int]:
    """Bytes of weights in a directory."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(path) if entry.name.endswith(WEIGHTS))
    except OSError:
        return UNKNOWN


def journal(directory: str = "/var/log/journal") -> Journal:
    """Whether the journal outlives a reboot, and whether this user may read it."""
    kept = os.path.isdir(directory) and any(os.scandir(directory))
    readable = os.geteuid() == 0 or any(
        group.gr_gid in os.getgroups() for group in grp.getgrall() if group.gr_name in ("systemd-journal", "adm")
    )
    return Journal(kept=kept, readable=readable)
