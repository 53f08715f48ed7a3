"""TCP on this machine, and whether the servers that downloads come from can be reached as the user that fetches."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from appliance import names
from appliance.config.model import Network
from appliance.host import ownprogram, ports
from appliance.host.access import account, user_name
from appliance.host.command import Late, output_of
from appliance.hostfacts import Listening, Reached, Sockets
from appliance.quantity import UNKNOWN, Maybe
from appliance.wire import procnet

REACH_S = 6.0
PROC = "/proc"


def sockets(applied: tuple[str, ...] = (), gateway: Maybe[int] = UNKNOWN, proc: str = PROC) -> Sockets:
    """Everything that listens, with those owners that this user may see. `gateway` is the pid of its main process."""
    entries = ports.listening(proc)
    users = {uid: user_name(uid) for uid in {entry.uid for entry in entries}}
    owned = ports.owners((entry.inode for entry in entries), proc) if entries else {}
    ours = frozenset[int]() if gateway is UNKNOWN else ports.held(gateway, proc)
    found = []
    for entry in entries:
        one = Listening(host=entry.host, port=entry.port, user=users[entry.uid])
        who = owned.get(entry.inode)
        if who is not None:
            one = replace(one, owner=f"{who[1]} (pid {who[0]})", pid=who[0])
        if gateway is not UNKNOWN and (entry.inode in ours or one.pid not in (1, UNKNOWN)):
            one = replace(one, ours=entry.inode in ours)
        found.append(one)
    told = Sockets(listening=tuple(found), applied=applied)
    try:
        first, last = map(int, Path(proc, "sys/net/ipv4/ip_local_port_range").read_text().split())
        lingering = procnet.time_wait(Path(proc, "net/sockstat").read_text())
    except (OSError, ValueError):
        return told
    return replace(told, time_wait=lingering, first=first, last=last)


async def reached(url: str, purpose: str, network: Network) -> Reached:
    """Ask one server; as the user of downloads where this process may become it. Never late, and raises Silent."""
    me = user_name(os.geteuid())
    other = os.geteuid() == 0 and account(names.RUNTIME_USER) is not None
    user = names.RUNTIME_USER if other else me
    asked = Reached(url=url, purpose=purpose, user=user, service_user=names.RUNTIME_USER)
    way = {"https_proxy": network.https_proxy, "http_proxy": network.https_proxy, "no_proxy": network.no_proxy,
           "SSL_CERT_FILE": ""}  # fmt: skip
    inherited = {name: os.environ[name] for name in way if not other and name in os.environ}
    more = {**ownprogram.modules(), **inherited, **{name: value for name, value in way.items() if value}}
    argv = (*ownprogram.python(), "-m", "appliance.host.checkup.reach", url, f"{REACH_S - 1:g}", network.ca_file)
    try:
        text = await output_of(argv, REACH_S, 1 << 16, more=more, user=user if other else "")
        said = json.loads(text)
        return replace(
            asked, status=int(said["status"]), fault=str(said["fault"]), kind=str(said["kind"]), took=said["took"]
        )
    except Late:
        return replace(asked, fault=f"no answer within {REACH_S:.0f} s", kind="late", took=REACH_S)
    except (ValueError, KeyError, TypeError):
        return replace(asked, fault="the question itself could not be put", kind="other")
