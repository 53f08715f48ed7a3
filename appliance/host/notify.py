"""What a process tells the service manager, and what it was handed by it; nothing happens without a service manager.

Plain messages go out through `sdnotify`. It knows neither descriptors nor text beyond Latin-1, so `barrier` speaks the
protocol itself and `notify` hands it UTF-8 in Latin-1's clothes. None of these calls raises.

The manager's queue holds few messages, and a busy manager (a long daemon-reload) lets it fill. What is said again soon,
a status or a watchdog's sign of life, is dropped then; what is said once (ready, stopping) waits up to `PATIENCE_S`.
"""

from __future__ import annotations

import array
import os
import select
import socket

import sdnotify

from appliance import clock

PATIENCE_S = 5.0
_SAID_AGAIN = {"STATUS", "WATCHDOG", "EXTEND_TIMEOUT_USEC"}
FIRST_DESCRIPTOR = 3  # sd_listen_fds(3): passed descriptors begin behind the standard ones


def notify(**fields: object) -> None:
    """Send all fields in one message, e.g. `notify(READY=1, STATUS="serving")`; newlines in values become spaces.

    A new socket for each message: messages are rare, and a process that forks never shares one with its child.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return
    lines = [f"{name}={' '.join(str(value).splitlines())}" for name, value in fields.items()]
    notifier = sdnotify.SystemdNotifier()
    try:
        if notifier.socket is not None:
            notifier.socket.settimeout(0.0 if fields.keys() <= _SAID_AGAIN else PATIENCE_S)
        notifier.notify("\n".join(lines).encode(errors="replace").decode("latin-1"))
    finally:
        if notifier.socket is not None:
            notifier.socket.close()


def ready(text: str | None = None) -> None:
    """The start (or the reload) is complete."""
    notify(READY=1, **({} if text is None else {"STATUS": text}))


def status(text: str) -> None:
    """The line that `systemctl status` shows."""
    notify(STATUS=text)


def watchdog() -> None:
    """Still alive: call it from the loop that must not block, every `watchdog_interval()` seconds."""
    notify(WATCHDOG=1)


def extend_timeout(seconds: float) -> None:
    """The running start or stop may take `seconds` more from now on."""
    notify(EXTEND_TIMEOUT_USEC=int(seconds * 1_000_000))


def stopping(text: str | None = None) -> None:
    """The process has begun to stop."""
    notify(STOPPING=1, **({} if text is None else {"STATUS": text}))


def reloading() -> None:
    """A reload has begun; `ready()` ends it. The clock reading is what newer service managers match the two by."""
    notify(RELOADING=1, MONOTONIC_USEC=int(clock.monotonic() * 1_000_000))


def barrier(timeout_s: float) -> bool:
    """Wait until the manager has read all earlier messages; blocks up to `timeout_s`. False when it did not answer.

    A process that ends at once after a message should call it: a message whose sender is gone belongs to nobody.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return True
    ours, theirs = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(timeout_s)
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            rights = array.array("i", [theirs]).tobytes()
            sender.sendmsg([b"BARRIER=1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(theirs)
        theirs = -1
        # The manager closes its copy when it comes to the message; the pipe then hangs up.
        poll = select.poll()
        poll.register(ours, 0)
        return bool(poll.poll(timeout_s * 1000))
    except OSError:
        return False
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def listen_fds() -> dict[str, list[int]]:
    """Descriptors that socket units passed, by FileDescriptorName=; empty when none are meant for this process.

    They are marked close-on-exec: a child gets only what it is given.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    count = _number("LISTEN_FDS") or 0
    given = os.environ.get("LISTEN_FDNAMES", "")
    labels = given.split(":") if given else []
    descriptors: dict[str, list[int]] = {}
    for offset in range(count):
        descriptor = FIRST_DESCRIPTOR + offset
        os.set_inheritable(descriptor, False)
        label = labels[offset] if offset < len(labels) and labels[offset] else "unknown"
        descriptors.setdefault(label, []).append(descriptor)
    return descriptors


def watchdog_interval() -> float | None:
    """Seconds between two calls of `watchdog()`: a third of the unit's WatchdogSec=; None when nobody watches."""
    limit = _number("WATCHDOG_USEC")
    watched = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not limit or watched != str(os.getpid()):
        return None
    return limit / 3_000_000


def _number(variable: str) -> int | None:
    try:
        return int(os.environ.get(variable, ""))
    except ValueError:
        return None
