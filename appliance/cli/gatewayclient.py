"""Where the gateway is found, and its status: over the admin listener, which all here may ask, or its socket."""

from __future__ import annotations

import http.client
import json

from appliance import names
from appliance.config import source
from appliance.config.model import Config
from appliance.errors import Unreachable
from appliance.host import places
from appliance.host.unixhttp import UnixConnection

from .frontclient import Place

DEADLINE_S = 5.0


def public_place(config: Config) -> Place:
    """Where a client on this machine finds the public listener."""
    host, _, port = config.gateway.listen[0].rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    return Place(bool(config.gateway.tls_certificate), host, int(port), "")


def read_status(config_path: str) -> dict[str, object]:
    """The object that `GET /status` answers. Raises Unreachable, with what was tried."""
    config = source.effective(config_path).config
    tried = []
    if config is not None:
        address = config.gateway.admin_listen
        host, _, port = address.rpartition(":")
        try:
            return _get(http.client.HTTPConnection(host.strip("[]"), int(port), timeout=DEADLINE_S))
        except (OSError, ValueError, http.client.HTTPException) as error:
            tried.append(f"{address}: {_words(error)}")
    path = places.from_environment().under_run(names.GATEWAY_SOCKET)
    try:
        return _get(UnixConnection(path, DEADLINE_S))
    except (OSError, ValueError, http.client.HTTPException) as error:
        tried.append(f"{path}: {_words(error)}")
    raise Unreachable(f"the gateway does not answer ({'; '.join(tried)})", hint="systemctl status llm-gateway")


def _get(connection: http.client.HTTPConnection) -> dict[str, object]:
    """Raises ValueError for an answer that is not the gateway's."""
    try:
        connection.request("GET", "/status", headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    try:
        value = json.loads(body) if answer.status == 200 else None
    except ValueError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("engines"), list):
        raise ValueError("the answer is not the gateway's: another program listens there")
    return value


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or "no answer").lower()
    return str(error) or type(error).__name__
