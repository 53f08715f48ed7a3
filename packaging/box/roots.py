"""Base roots: a minimal Debian with systemd, made once for each distribution by mmdebstrap.

What the package must pull in by its own `Depends` or `Recommends` is left out on purpose (python3-venv, libnuma1,
procps, compilers): an installation in a box must prove them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .places import BoxError, lock, place

DISTROS = ("bookworm", "trixie")
PACKAGES = ("systemd", "systemd-sysv", "dbus", "ca-certificates", "python3", "curl", "iproute2")
RECIPE = "1"  # raise it when what is done to a root below changes
HOST_CA = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def key(distro: str) -> str:
    """The name of a distribution's base root; changes when its recipe does."""
    if distro not in DISTROS:
        raise BoxError(f"no such distribution: {distro!r}; there are {', '.join(DISTROS)}")
    return f"{distro}-{hashlib.sha256(' '.join((RECIPE, distro, *PACKAGES)).encode()).hexdigest()[:8]}"


def base(distro: str) -> Path:
    """The base root of a distribution, made first if missing (about a minute, needs the package archive)."""
    root = place("roots", key(distro))
    if root.exists():
        return root
    with lock("roots"):
        if not root.exists():
            _make(distro, root)
    return root


def _make(distro: str, root: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise BoxError("mmdebstrap is missing: apt-get install mmdebstrap systemd-container")
    print(f"box: making the base root of {distro} (once)", file=sys.stderr, flush=True)
    fresh = root.with_name(root.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    options = [f"--aptopt={line}" for line in _apt_settings()]
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command += ["--skip=cleanup/apt/lists", *options, distro, str(fresh)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise BoxError(f"mmdebstrap {distro} failed:\n{done.stderr[-4000:]}")
    (fresh / "etc/machine-id").write_text("")
    (fresh / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    fresh.rename(root)


def _apt_settings() -> list[str]:
    """What this host's apt needs to reach its archive (proxies, checks of dates): a box needs it too."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=30, check=False).stdout
    wanted = re.compile(
        r'(Acquire::(Check-[A-Za-z-]+|Retries|[a-z]+::([A-Za-z-]*Proxy|Timeout|Verify-[A-Za-z]+))) ".+";'
    )
    return [line for line in dump.splitlines() if wanted.fullmatch(line)] + ['Acquire::Languages "none";']


def certificates_to_add(root: Path) -> list[str]:
    """The certificates that this host trusts and the root's bundle lacks, as PEM texts."""
    try:
        ours = HOST_CA.read_text()
        theirs = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
    except OSError:
        return []
    known = set(CERTIFICATE.findall(theirs))
    return [pem for pem in dict.fromkeys(CERTIFICATE.findall(ours)) if pem not in known]
