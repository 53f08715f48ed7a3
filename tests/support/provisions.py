"""Programs that some tests need beside `.venv`: nginx, Caddy, zsh, vllm-router, client frameworks, our own libraries.

    PYTHONPATH=packaging python -m tests.support.provisions        make what is missing (tests/run does)

Kept in the cache that tests/run names, one directory for each version, made once by whoever asks first. Packages of
Debian's are unpacked and not installed: that would start and enable web servers on the machine that runs the tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from box.places import cache, lock

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ROOT / "tests/requirements-frameworks.txt"
ROUTER = ROOT / "tests/requirements-router.txt"
FRAMEWORKS_PYTHON = (3, 11)  # the oldest that langchain-core runs on
LIMIT = 600  # seconds for a download


def nginx() -> Path:
    """The program."""
    return _installed("nginx") or _debian("nginx") / "usr/sbin/nginx"


def caddy() -> Path:
    """The program."""
    return _installed("caddy") or _debian("caddy") / "usr/bin/caddy"


def zsh() -> Path:
    """The program."""
    return _installed("zsh") or _debian("zsh") / "bin/zsh"


def frameworks() -> Path:
    """A Python that has langchain-openai and litellm."""
    return _environment("frameworks", FRAMEWORKS) / "bin/python"


def vllm_router() -> Path:
    """The program, which only the benchmark needs. Raises RuntimeError where it cannot be installed."""
    return _environment("vllm-router", ROUTER) / "bin/vllm-router"


def control_trees() -> Path:
    """The directory with the package's own dependencies, one tree for each Python (cp311). Raises RuntimeError."""
    directory = cache() / "control"
    _run([str(ROOT / "packaging/control_trees.sh"), str(directory)])
    return directory


def _environment(name: str, requirements: Path) -> Path:
    """A virtual environment with what a file lists."""
    stamp = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]

    def make(directory: Path) -> None:
        _run([sys.executable, "-m", "venv", str(directory)])
        pip = [str(directory / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-r", str(requirements)])

    return once(f"{name}-{stamp}", make)


def _installed(name: str) -> Path | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found) if found else None


def _debian(package: str) -> Path:
    """The package's files, of this machine's release."""

    def make(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            os.chmod(scratch, 0o777)  # apt downloads as a user of its own
            fetch = ["apt-get", "-q", "download", package]
            if subprocess.run(fetch, cwd=scratch, capture_output=True, timeout=LIMIT).returncode:
                _run(["apt-get", "-q", "update"])
                _run(fetch, cwd=scratch)
            for archive in Path(scratch).glob("*.deb"):
                _run(["dpkg-deb", "-x", str(archive), str(directory)])

    release = Path("/etc/debian_version").read_text().strip().replace("/", "-")
    return once(f"{package}-{release}", make)


def once(name: str, make: Callable[[Path], None]) -> Path:
    """A directory that `make` fills; complete or not there. Another process that makes it is waited for."""
    directory, done = cache() / "provisions" / name, cache() / "provisions" / f"{name}.complete"
    directory.parent.mkdir(exist_ok=True)
    with lock(f"provision-{name}"):
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)
            make(directory)
            done.touch()
    return directory


def _run(command: list[str], cwd: str | None = None) -> None:
    """Raises RuntimeError with what the command said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def main() -> None:
    """Make all that tests need."""
    nginx()
    caddy()
    zsh()
    control_trees()
    if sys.version_info >= FRAMEWORKS_PYTHON:
        frameworks()


if __name__ == "__main__":
    main()
