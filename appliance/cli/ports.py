"""Whose the gateway's addresses are, for `doctor` to tell and for `apply` to know before it stops anything."""

from __future__ import annotations

from appliance import names
from appliance.config import source
from appliance.config.model import Config
from appliance.errors import Failed
from appliance.host import systemd
from appliance.host.checkup import network
from appliance.hostfacts import Sockets
from appliance.policy.checkup.network import taken


def sockets(config_path: str, config: Config) -> Sockets:
    """TCP on this machine; with systemd also what of it is the gateway's. Raises Unreachable."""
    if not systemd.is_running():
        return network.sockets()
    applied = (source.last_good(config_path).config or config).gateway
    unit = systemd.ask(systemd.show([names.GATEWAY_UNIT])).get(names.GATEWAY_UNIT)
    return network.sockets((*applied.listen, applied.admin_listen), unit.main_pid if unit is not None else 0)


def refuse_taken(config_path: str, config: Config) -> None:
    """Raises Failed where another program has one of the gateway's addresses."""
    for problem, remedy in taken(config, sockets(config_path, config)):
        raise Failed(f"nothing was changed: {problem}", hint=remedy)
