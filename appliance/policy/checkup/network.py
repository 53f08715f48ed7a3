"""Ports, and ways: who listens where, what is open that should not be, whether downloads get out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance import names
from appliance.config.model import Config
from appliance.hostfacts import HostFacts, Listening, NotKnown, Reached, Sockets
from appliance.quantity import UNKNOWN, format_duration

from .check import ROOT_SEES, Said, good, listed, skipped, unknown, warning, wrong

MOST_LINGERING = 0.5  # of the ports that outgoing connections can take
SHORT_FIRST_TOKEN, LONG_SILENCE = 60.0, 50.0  # a long prompt is read for longer; what the first proxies cut at
_LOOPBACK = ("127.", "::1")
_PROXIES = ("nginx", "caddy", "haproxy", "traefik", "envoy", "apache2", "httpd", "cloudflared")


def ports(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether the gateway's addresses are the gateway's."""
    if isinstance(facts.sockets, NotKnown):
        return [unknown(facts.sockets)]
    addresses = [each for each in (*config.gateway.listen, config.gateway.admin_listen) if not each.endswith(":0")]
    answers = not isinstance(facts.gateway, NotKnown)
    free = [address for address in addresses if not _there(address, facts.sockets)]
    said = [wrong(*one) for one in taken(config, facts.sockets)]
    if not said and not answers:
        said = [one for each in addresses if (one := _unknown_owner(each, facts)) is not None]
    if free and answers:
        said.append(wrong(f"the gateway runs and does not listen on {listed(free)}", "llm-appliance apply"))
    elif free:
        said.append(unknown(f"nobody listens on {listed(free)}: the gateway does not run"))
    return said or [good(f"{listed(addresses)}: the gateway's")]


def _there(address: str, found: Sockets) -> list[Listening]:
    host, _, port = address.rpartition(":")
    return [each for each in found.listening if str(each.port) == port and _meets(host.strip("[]"), each.host)]


def taken(config: Config, found: Sockets) -> Iterator[tuple[str, str]]:
    """The gateway's addresses that another program has: whose it is, and what to do."""
    named = [*(("listen", each) for each in config.gateway.listen), ("admin_listen", config.gateway.admin_listen)]
    for key, address in named:
        other = _stranger(address, found)
        if other is not None:
            whose = other.owner or f"a program of user {other.user}"
            first = "systemctl list-sockets names its unit" if other.pid == 1 else "stop that program"
            yield f"{address} is taken by {whose}", f"{first}, or change [gateway] {key}"


def _stranger(address: str, found: Sockets) -> Listening | None:
    """Who is there and neither the gateway nor systemd for it, which holds no others than those applied last."""
    theirs = [each for applied in found.applied for each in _there(applied, found)]
    for each in _there(address, found):
        if each.ours is False or (each.ours is UNKNOWN and found.applied and each not in theirs):
            return each
    return None


def _unknown_owner(address: str, facts: HostFacts) -> Said | None:
    """Whose a port is while the gateway does not answer; systemd (pid 1) holds it for the gateway."""
    there = () if isinstance(facts.sockets, NotKnown) else _there(address, facts.sockets)
    if not there or there[0].pid == 1:
        return None
    if there[0].owner:
        return wrong(f"{address} is taken by {there[0].owner}", "stop that program, or change [gateway] listen")
    return unknown(f"who listens on {address} (user {there[0].user})", "" if facts.root else ROOT_SEES)


def _meets(wanted: str, bound: str) -> bool:
    """Whether both cannot be listened on: `::` takes IPv4 too, `0.0.0.0` leaves IPv6 alone."""
    if wanted == bound or wanted == "localhost" or "::" in (wanted, bound):
        return True
    return "0.0.0.0" in (wanted, bound) and (":" in wanted) == (":" in bound)


def exposure(facts: HostFacts, config: Config) -> Iterable[Said]:
    """A vLLM that listens on TCP answers without a key; ours listen on unix sockets.

    Ranks of an engine find one another through a port of torch's, which is open on every address: the units' address
    filter is what closes it.
    """
    if isinstance(facts.sockets, NotKnown):
        return [unknown(facts.sockets)]
    open_ = [each for each in facts.sockets.listening if not each.host.startswith(_LOOPBACK)]
    by_hand = [each for each in open_ if each.user != names.ENGINE_USER and each.owner.lower().startswith("vllm")]
    if by_hand:
        return [
            wrong(
                f"a vLLM listens on {listed(map(_place, by_hand))}, past the gateway and its keys",
                "end it, or let it listen on 127.0.0.1 and name it in remote",
            )
        ]
    ours = [each for each in open_ if each.user == names.ENGINE_USER]
    if ours and (bare := _unfiltered(facts)):
        return [
            wrong(
                f"an engine listens on {listed(map(_place, ours))}, and {listed(bare)} has no address filter",
                f"systemctl edit {bare[0]}; remove what empties IPAddressDeny=",
            )
        ]
    admin = config.gateway.admin_listen.rpartition(":")[0].strip("[]")
    if not admin.startswith((*_LOOPBACK, "localhost")):
        return [
            wrong(
                f"the admin listener, which asks for no key, is open at {config.gateway.admin_listen}",
                'set [gateway] admin_listen = "127.0.0.1:8081"',
            )
        ]
    return [good("no engine listens on the network")]


def _unfiltered(facts: HostFacts) -> list[str]:
    units = () if isinstance(facts.units, NotKnown) else facts.units
    return [u.name for u in units if u.name.startswith("llm-engine@") and not u.properties.get("IPAddressDeny")]


def _place(each: Listening) -> str:
    return f"{each.host}:{each.port}" + (f" ({each.owner})" if each.owner else f" (user {each.user})")


def connections(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Clients that open a connection for each request leave ports behind that are blocked for a minute."""
    if isinstance(facts.sockets, NotKnown):
        return [unknown(facts.sockets)]
    found = facts.sockets
    if found.time_wait is UNKNOWN:
        return [unknown("the kernel does not count them")]
    there = max(found.last - found.first + 1, 1)
    if found.time_wait > MOST_LINGERING * there:
        return [
            warning(
                f"{found.time_wait} ended connections still hold ports, of {there}",
                "let clients keep connections open (one SDK client for all calls), or widen "
                "net.ipv4.ip_local_port_range",
            )
        ]
    return [good(f"{found.time_wait} ended connections linger, of {there} ports")]


def hub(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether what downloads need can be reached as the user that downloads."""
    if isinstance(facts.reached, NotKnown):
        return [unknown(facts.reached)]
    if not facts.reached:
        return [skipped("the configuration fetches nothing")]
    needed = _is_needed(facts)
    said = [_unreached(each, needed) for each in facts.reached if each.fault]
    who = facts.reached[0]
    asked = f" as {who.user}" + ("" if who.user == who.service_user else f"; {who.service_user} was not asked for")
    fine = [f"{each.purpose} ({format_duration(each.took)})" for each in facts.reached if not each.fault]
    return [*said, *([good(f"{listed(fine)} reached{asked}")] if fine else [])]


def _unreached(each: Reached, needed: bool) -> Said:
    remedies = {
        "dns": "look at /etc/resolv.conf, or set [network] https_proxy",
        "tls": "set [network] ca_file to the authority of the proxy in between; look at the clock",
        "late": "a firewall drops it: set [network] https_proxy, or a mirror",
        "refused": "set [network] https_proxy, or a mirror",
    }
    mirror = "; [models] endpoint and [runtime] index_url name mirrors"
    say = wrong if needed else warning
    rest = "" if needed else "; all that the engines need is here"
    remedy = remedies.get(each.kind, "set [network] https_proxy") + mirror
    return say(f"{each.purpose} cannot be reached as {each.user}: {each.url}: {each.fault}{rest}", remedy)


def _is_needed(facts: HostFacts) -> bool:
    """Whether something is still to be fetched."""
    if isinstance(facts.runtime, NotKnown) or isinstance(facts.models, NotKnown):
        return False
    missing = [model for model in facts.models if model.standing != "ready" and not model.model.startswith("/")]
    return not facts.runtime.complete or bool(missing)


def timeouts(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Limits that are shorter than a long prompt takes, and silences that proxies cut."""
    said = []
    first, keepalive = config.gateway.timeouts.first_token, config.gateway.stream.keepalive
    if first < SHORT_FIRST_TOKEN:
        said.append(
            warning(
                f"gateway.timeouts.first_token is {format_duration(first)}: long prompts are read for longer",
                "leave it out (600s)",
            )
        )
    if keepalive > LONG_SILENCE:
        said.append(
            warning(
                f"gateway.stream.keepalive is {format_duration(keepalive)}: proxies cut silences of 50 or 60 s",
                "leave it out (10s)",
            )
        )
    return said or [
        good(f"a first token may take {format_duration(first)}, silences are filled after {format_duration(keepalive)}")
    ]


def proxy(facts: HostFacts, config: Config) -> Iterable[Said]:
    """What stands in front can only be tried from the outside."""
    if isinstance(facts.sockets, NotKnown):
        return [unknown(facts.sockets)]
    there = [each for each in facts.sockets.listening if each.owner.startswith(_PROXIES)]
    if there or config.gateway.trusted_proxies:
        what = listed(dict.fromkeys(map(_place, there))) or f"trusted: {listed(config.gateway.trusted_proxies)}"
        return [skipped(f"a proxy stands in front ({what}): llm-appliance doctor --through https://NAME/v1 tries it")]
    return [skipped("none seen here; llm-appliance doctor --through URL tries one elsewhere")]
