"""The Python of the host and, in a small environment of its own, uv.

pip comes from the host's `python3 -m venv`; it installs one pinned, hash-checked wheel: uv. Everything else is uv's.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance import clock, names
from appliance.errors import Failed
from appliance.host import files

from . import child
from .faults import Impossible
from .layout import Layout
from .locks import Lock
from .resolve import Sources, redacted

VENV_DEADLINE_S = 120.0
PIP_DEADLINE_S = 900.0
PROBE_DEADLINE_S = 20.0
MADE = ".made"  # in the environment: it holds a whole pip
HOST_PYTHON = "/usr/bin/python3"


def python_version(python: str, deadline_s: float = PROBE_DEADLINE_S) -> str | None:
    """major.minor of an interpreter; None when it does not run. Raises Failed when it does not answer in time, which
    a machine that boots or swaps may bring about: it is no reason to go without it.
    """
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-I", "-c", probe], capture_output=True, text=True, timeout=deadline_s, check=True
        )
    except subprocess.TimeoutExpired:
        raise Failed(
            f"{python} did not say its version within {deadline_s:g} s",
            hint="what keeps this machine busy? (top, iostat); llm-runtime.service tries again",
        ) from None
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def find_python(supported: Sequence[str], given: str = "") -> tuple[str, str]:
    """(interpreter, major.minor) to build with: the host's own where it is supported, else another that is installed.

    Raises Impossible with what to do.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Impossible(
            f"there is no tested vLLM for {platform.machine()} machines",
            hint='run engines on an x86-64 machine and name them here with remote = ["http://..."]',
        )
    places = [given] if given else [HOST_PYTHON, *(f"/usr/bin/python{minor}" for minor in reversed(supported))]
    own = None
    for place in places:
        version = python_version(place)
        own = own or version
        if version is not None and version in supported:
            return place, version
    raise Impossible(
        f"this release's vLLM has no files for Python {own or '(none found)'}, which is this host's python3",
        hint=f"install one of Python {', '.join(supported)} with its venv module (for example apt install python3.11 "
        'python3.11-venv), or let another machine run the engines: remote = ["http://..."]',
    )


def ensure_uv(layout: Layout, python: str, version: str, lock: Lock, sources: Sources, env: Mapping[str, str]) -> str:
    """The path of the pinned uv, installed first where it is missing. Raises Failed; may block for minutes."""
    home = Path(layout.bootstrap)
    key: dict[str, object] = {"python": version, "lock": lock.digest}
    record = files.read_json(home / names.RUNTIME_COMPLETE)
    uv = home / "bin" / "uv"
    if record is not None and {name: record.get(name) for name in key} == key and uv.exists():
        return str(uv)
    if files.read_json(home / MADE) != {"v": 1, "python": version}:
        _make_venv(layout, python, version, env)
    requirements = Path(layout.scratch, lock.name)
    requirements.write_text(lock.text)
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    install += ["--require-hashes", "--progress-bar", "off", *sources.find_links(), "-r", str(requirements)]
    offline = [["--no-index"]] if sources.wheelhouses else []
    for where in [*offline, sources.index()]:
        done = child.run([*install, *where], env=env, cwd=layout.runtimes, deadline_s=PIP_DEADLINE_S)
        if done.status == 0:
            files.settle(home)
            files.replace_json(home / names.RUNTIME_COMPLETE, {**key, "at": clock.wall()})
            return str(uv)
    raise Failed(
        f"pip cannot install uv: {_reason(done)}",
        hint="check the network, [network] https_proxy and ca_file, and [runtime] index_url; "
        "without a network put uv's wheel into [runtime] wheelhouse",
    )


def _make_venv(layout: Layout, python: str, version: str, env: Mapping[str, str]) -> None:
    home = Path(layout.bootstrap)
    shutil.rmtree(home, ignore_errors=True)
    made = child.run([python, "-m", "venv", str(home)], env=env, cwd=layout.runtimes, deadline_s=VENV_DEADLINE_S)
    if made.status != 0:
        raise Failed(
            f"{python} -m venv failed: {made.lines[-1] if made.lines else 'it said nothing'}",
            hint=f"apt install python3-venv (or python{version}-venv)",
        )
    files.replace_json(home / MADE, {"python": version})


def _reason(done: child.Ended) -> str:
    errors = [line for line in done.lines if line.startswith("ERROR:")]
    lines = errors or list(done.lines)
    return redacted(lines[0].removeprefix("ERROR: ")) if lines else f"it ended with status {done.status}"
