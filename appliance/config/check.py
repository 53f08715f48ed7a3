"""The laws across fields: what each value alone cannot show.

The ladder of times, all of `[supervisor.hang]`:

    3 x interval <= suspect < confirm <= confirm_blind        three samples make a suspicion
    suspect < confirm_idle_gpu, confirm <= long_step          an allowance is longer than what it extends
    confirm_blind < 300s (warning)                            vLLM ends itself then, and the evidence is gone

There is no law between `first_token` and the hang limits: one bounds a request, the others judge an engine.
"""

from __future__ import annotations

from typing import Protocol

from appliance.config import fleet
from appliance.config.model import Config
from appliance.config.places import Path
from appliance.quantity import format_duration, format_size


class Say(Protocol):
    """Takes a problem at a path."""

    def __call__(self, path: Path, message: str, remedy: str = "", severity: str = "error") -> None: ...


VLLM_STEP_TIMEOUT = 300.0  # VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS of vLLM 0.32


def laws(config: Config, say: Say) -> None:
    """Say everything that is wrong between fields."""
    _listeners(config, say)
    _memory(config, say)
    _openness(config, say)
    _times(config, say)
    fleet.laws(config, say)


def host_port(address: str) -> tuple[str, int]:
    """The two halves of `IP:PORT` or `[IPv6]:PORT`; the host without brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    host, _ = host_port(address)
    if ":" not in host:
        return host.startswith("127.")
    from ipaddress import IPv6Address

    return IPv6Address(host).is_loopback


def _is_any(host: str) -> bool:
    return host == "0.0.0.0" or (":" in host and not host.strip("0:"))


def _collide(one: str, other: str, apart: bool = False) -> bool:
    """Whether two addresses cannot both be listened on; port 0 is the kernel's choice.

    `apart` says that IPv6 sockets leave IPv4 alone, as those of one list with both do.
    """
    (host, port), (other_host, other_port) = host_port(one), host_port(other)
    if port != other_port or port == 0:
        return False
    if apart and (":" in host) != (":" in other_host):
        return False
    return host == other_host or _is_any(host) or _is_any(other_host)


def _listeners(config: Config, say: Say) -> None:
    gateway = config.gateway
    for index, address in enumerate(gateway.listen):
        for other in gateway.listen[:index]:
            if _collide(address, other, apart=True):
                say(("gateway", "listen", index), f"{address} is taken by {other}", "give each its own port")
    taken = next((address for address in gateway.listen if _collide(address, gateway.admin_listen)), None)
    if taken is not None:
        say(("gateway", "admin_listen"), f"{gateway.admin_listen} is taken by listen = {taken}",
            "give the admin listener its own port")  # fmt: skip
    if not is_loopback(gateway.admin_listen):
        say(("gateway", "admin_listen"), f"{gateway.admin_listen} can be reached from outside, and it has no login",
            f"write 127.0.0.1:{host_port(gateway.admin_listen)[1]}")  # fmt: skip


def _memory(config: Config, say: Say) -> None:
    gateway = config.gateway
    if gateway.max_bodies < gateway.max_body:
        say(("gateway", "max_bodies"), f"{format_size(gateway.max_bodies)} cannot hold one body of max_body "
            f"({format_size(gateway.max_body)})", "raise max_bodies or lower max_body")  # fmt: skip


def _openness(config: Config, say: Say) -> None:
    gateway = config.gateway
    if bool(gateway.tls_certificate) != bool(gateway.tls_key):
        there, lacking = ("certificate", "key") if gateway.tls_certificate else ("key", "certificate")
        say(("gateway", f"tls_{there}"), f"tls_{lacking} is missing", f"set tls_{lacking} too, or neither")
    opened = [(index, address) for index, address in enumerate(gateway.listen) if not is_loopback(address)]
    for index, address in opened:
        if not config.auth.required:
            say(("gateway", "listen", index), f"{address} can be reached from outside while [auth] required is false",
                "ask for keys, or listen on 127.0.0.1")  # fmt: skip
        elif not gateway.tls_key:
            say(("gateway", "listen", index), f"{address} can be reached from outside without TLS: keys and prompts "
                "are readable on the way", "set tls_certificate and tls_key, or put a TLS proxy in front",
                "warning")  # fmt: skip
    if "*" in gateway.cors_origins and not config.auth.required:
        say(("gateway", "cors_origins"), '"*" lets any web page use the models while [auth] required is false',
            "name the origins", "warning")  # fmt: skip


def _times(config: Config, say: Say) -> None:
    supervisor, hang = config.supervisor, config.supervisor.hang
    where = ("supervisor", "hang")
    span = format_duration

    def ordered(small: str, large: str, equal: bool = False) -> None:
        low, high = getattr(hang, small), getattr(hang, large)
        if low > high or (low == high and not equal):
            relation = "at most" if equal else "less than"
            say((*where, small), f"{span(low)} must be {relation} {large} ({span(high)})",
                f"lower {small} or raise {large}")  # fmt: skip

    if 3 * supervisor.interval > hang.suspect:
        say(("supervisor", "interval"), f"{span(supervisor.interval)} leaves fewer than three observations before "
            f"hang.suspect ({span(hang.suspect)})", f"at most {span(hang.suspect / 3)}")  # fmt: skip
    ordered("suspect", "confirm")
    ordered("suspect", "confirm_idle_gpu")
    ordered("confirm", "confirm_blind", equal=True)
    ordered("confirm", "long_step", equal=True)
    if hang.confirm_blind >= VLLM_STEP_TIMEOUT:
        say((*where, "confirm_blind"), f"{span(hang.confirm_blind)} is not below vLLM's own limit of "
            f"{span(VLLM_STEP_TIMEOUT)}: a hang would end without evidence", 'at most "290s"', "warning")  # fmt: skip
    restart = supervisor.restart
    if restart.backoff > restart.backoff_max:
        say(("supervisor", "restart", "backoff"), f"{span(restart.backoff)} is more than backoff_max "
            f"({span(restart.backoff_max)})", "lower backoff or raise backoff_max")  # fmt: skip
