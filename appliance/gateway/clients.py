"""Where a client is, and what a browser may do: addresses behind trusted proxies, origins."""

from __future__ import annotations

import ipaddress

from appliance.config.model import Config
from appliance.wire.headers import render_fields
from appliance.wire.requesthead import RequestHead

from .answer import Answer

# What a page may read of an answer besides its body: the SDKs obey the last three there as well.
EXPOSED = "x-request-id, x-engine, x-queue-time-ms, x-queue-position, retry-after, retry-after-ms, x-should-retry"


def forwarded_address(config: Config | None, head: RequestHead, address: str) -> str:
    """The client's address: X-Forwarded-For is believed only as far as trusted proxies wrote it. `address` is who
    connected."""
    trusted = config.gateway.trusted_proxies if config else ()
    if not trusted or "x-forwarded-for" not in head.values or not is_trusted(address, trusted):
        return address
    hops = [hop.strip() for name, value in head.fields if name == "x-forwarded-for" for hop in value.split(",")]
    for hop in reversed(hops):
        if not _is_address(hop):
            break
        address = hop
        if not is_trusted(hop, trusted):
            break
    return address


def forwarding(config: Config | None, head: RequestHead, address: str) -> str:
    """Whether somebody says for whom a request is passed on, and is believed: absent, ignored or believed."""
    if "x-forwarded-for" not in head.values:
        return "absent"
    trusted = config.gateway.trusted_proxies if config else ()
    return "believed" if is_trusted(address, trusted) else "ignored"


def is_trusted(address: str, trusted: tuple[str, ...]) -> bool:
    """Whether an address lies in one of the configured networks."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    for entry in trusted:
        try:
            if ip in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def cors_fields(config: Config | None, head: RequestHead) -> str:
    """Response fields, as lines, for a browser of a configured origin; none for everybody else."""
    origins = config.gateway.cors_origins if config else ()
    origin = head.get("origin") if origins else ""
    if not origin or (origin not in origins and "*" not in origins):
        return ""
    fields = [("Access-Control-Allow-Origin", origin), ("Vary", "Origin")]
    if head.method == "OPTIONS":
        fields += [
            ("Access-Control-Allow-Methods", "GET, POST"),
            ("Access-Control-Allow-Headers", "authorization, content-type, x-api-key, x-request-id, anthropic-version"),
            ("Access-Control-Max-Age", "600"),
        ]
    else:
        fields.append(("Access-Control-Expose-Headers", EXPOSED))
    return render_fields(fields)


def is_preflight(head: RequestHead, answer: Answer) -> bool:
    """A browser's question before a call; it carries no key. Answered only for the origins that are configured."""
    return (
        head.method == "OPTIONS"
        and "access-control-request-method" in head.values
        and "Access-Control-Allow-Origin: " in answer.extra
    )
