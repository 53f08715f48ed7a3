"""Programs that the builder runs: pip, uv and the runtime's own Python, each with a deadline and its last words.

A child gets a process group of its own and is killed with it when the deadline passes or the builder is told to stop.
"""

from __future__ import annotations

import collections
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from appliance import names
from appliance.config.model import Config
from appliance.errors import Failed

from .faults import Impossible
from .layout import Layout

KEPT_LINES = 60  # enough for a traceback or uv's explanation of a conflict
GRACE_S = 5.0
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
PREFIXES = ("PIP_", "UV_", "HF_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_SIGNALS = {number.value: number.name for number in signal.Signals}
SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status (negative: the signal) and the end of what it printed."""

    status: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """What it printed last."""
        return "\n".join(self.lines)

    @property
    def end(self) -> str:
        """Its last line, or the end itself in words when it had none; a child that was killed has no last word."""
        if self.status < 0:
            return f"it was ended by {_SIGNALS.get(-self.status, f'signal {-self.status}')}"
        return self.lines[-1] if self.lines else f"it ended with status {self.status}"


def write_certificates(config: Config, layout: Layout, inherited: Mapping[str, str]) -> None:
    """Make `layout.certificates` where `[network] ca_file` is set: those who download know of one file alone, and what
    is trusted besides the system's certificates must not replace them. Raises Impossible, OSError.
    """
    given = config.network.ca_file
    if not given:
        return
    try:
        own = Path(given).read_bytes()
        ssl.create_default_context().load_verify_locations(given)
    except ssl.SSLError as error:
        raise Impossible(
            f"[network] ca_file {given} holds no certificates", hint="it must be a file of PEM certificates"
        ) from error
    except OSError as error:
        raise Impossible(
            f"[network] ca_file {given} cannot be read: {(error.strerror or '').lower()}",
            hint=f"it must be readable for the user {names.RUNTIME_USER}",
        ) from error
    try:
        system = Path(inherited.get("SSL_CERT_FILE") or SYSTEM_CERTIFICATES).read_bytes()
    except OSError:
        system = b""
    Path(layout.certificates).write_bytes(system.rstrip() + b"\n" + own)


def network_environment(config: Config, layout: Layout) -> dict[str, str]:
    """`[network]` in the variables that urllib, pip, uv and the hub's client read."""
    network, made = config.network, {}
    if network.https_proxy:
        for name in ("https_proxy", "http_proxy"):
            made[name] = made[name.upper()] = network.https_proxy
    if network.no_proxy:
        made["no_proxy"] = made["NO_PROXY"] = network.no_proxy
    if network.ca_file:
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            made[name] = layout.certificates
    return made


def environment(config: Config, layout: Layout, inherited: Mapping[str, str]) -> dict[str, str]:
    """All that a child sees. Its home and caches are the builder's own; the machine's pip and uv settings hold."""
    made = {
        name: value
        for name, value in inherited.items()
        if name in PASSED_ON or name.upper().startswith(PREFIXES)  # proxies are written in small letters, too
    }
    made.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    if os.path.exists(SYSTEM_CERTIFICATES):
        made.setdefault("PIP_CERT", SYSTEM_CERTIFICATES)
    made |= {
        "HOME": layout.scratch,
        "TMPDIR": layout.scratch,
        "XDG_CACHE_HOME": f"{layout.scratch}/cache",
        "UV_CACHE_DIR": f"{layout.scratch}/uv",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
        "UV_NO_PROGRESS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return made | network_environment(config, layout)


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    deadline_s: float,
    on_line: Callable[[str], None] | None = None,
) -> Ended:
    """Run a program to its end; blocks up to `deadline_s` and a grace. Raises Failed past the deadline, or when it
    cannot be started.

    `on_line` is called for each line in another thread; a line that it takes is not kept.
    """
    try:
        process = subprocess.Popen(
            list(words),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise Failed(f"{words[0]} cannot be started: {error.strerror}") from error
    lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process.stdout, lines, on_line), name="child output", daemon=True)
    reader.start()
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"{os.path.basename(words[0])} did not end within {deadline_s:.0f}s and was stopped") from None
    finally:
        _end(process)
        reader.join(GRACE_S)
    return Ended(process.returncode, tuple(lines))


def _read(stream: IO[str], lines: collections.deque[str], on_line: Callable[[str], None] | None) -> None:
    with stream:
        for line in stream:
            if on_line is None:
                lines.append(line.rstrip())
            else:
                on_line(line.rstrip())


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of the child's group behind."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
