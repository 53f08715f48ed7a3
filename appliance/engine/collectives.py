"""NCCL's own view of its collectives (RAS, since NCCL 2.24): which ranks have counted which, and which do not answer.

A thread of each rank listens on loopback at the address in NCCL_RAS_ADDR, which all ranks of an engine share; asked
for its status it tells that of all ranks as text. Other engines of the machine need other addresses, so the launcher
gives each its own.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections.abc import Mapping

VARIABLE, SWITCH = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
QUESTION = b"verbose status\n"
LIMIT = 1 << 20
ANSWER_S = 5.0  # NCCL waits that long for a rank by itself


def own_address() -> str:
    """An address on loopback that nobody has now; empty where there is none."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
    return ""


def address_of(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Where an engine with this environment listens; None where it does not, or at a place of its operator's."""
    host, _, port = env.get(VARIABLE, "").rpartition(":")
    if env.get(SWITCH, "1") == "0" or host not in ("127.0.0.1", "localhost") or not port.isdecimal():
        return None
    return "127.0.0.1", int(port)


class Status:
    """One question, in the launcher's poll loop; `until` is when it has had its time."""

    def __init__(self, address: tuple[str, int] | None, poll: select.poll, now: float) -> None:
        self._poll = poll
        self._socket: socket.socket | None = None
        self._heard = b""
        self._asked = False
        self.until = now + ANSWER_S
        if address is not None:
            self._connect(address)

    @property
    def running(self) -> bool:
        """Whether the answer is not whole yet."""
        return self._socket is not None

    @property
    def text(self) -> str:
        """What was told; empty where nobody listens."""
        return self._heard.decode(errors="replace")

    def owns(self, descriptor: int) -> bool:
        """Whether a descriptor that the poll named is this one's."""
        return self._socket is not None and self._socket.fileno() == descriptor

    def ready(self) -> None:
        """The connection stands, or something came, or nobody listens."""
        assert self._socket is not None
        try:
            if not self._asked:
                self._socket.send(QUESTION)
                self._asked = True
                self._poll.modify(self._socket.fileno(), select.POLLIN)
                return
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._heard += data[: LIMIT - len(self._heard)]
        if not data or len(self._heard) >= LIMIT:
            self.end()

    def end(self) -> None:
        """What was told by now is all."""
        if self._socket is not None:
            self._poll.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _connect(self, address: tuple[str, int]) -> None:
        made = socket.socket()
        made.setblocking(False)
        if made.connect_ex(address) not in (0, errno.EINPROGRESS):
            made.close()
            return
        self._socket = made
        self._poll.register(made.fileno(), select.POLLOUT | select.POLLIN)
