"""The way out to web servers: certificates and proxies, the same for everything that is fetched."""

from __future__ import annotations

import ssl
import urllib.request

from appliance.config.model import Network


def director(cafile: str = "", proxies: dict[str, str] | None = None) -> urllib.request.OpenerDirector:
    """Opens URLs; certificates of `cafile` besides the system's. None takes the proxies of the environment.

    Raises OSError for a file that cannot be read or holds none.
    """
    context = ssl.create_default_context()
    if cafile:
        context.load_verify_locations(cafile)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if proxies is not None:
        handlers.append(urllib.request.ProxyHandler(proxies))
    return urllib.request.build_opener(*handlers)


def proxies(network: Network, host: str) -> dict[str, str] | None:
    """The proxies that `[network]` gives for a host; None where it is silent, so that the environment decides."""
    if not network.https_proxy:
        return None
    spared = [name.strip().lstrip(".").lower() for name in network.no_proxy.split(",") if name.strip()]
    if "*" in spared or any(host.lower() == name or host.lower().endswith(f".{name}") for name in spared):
        return {}
    return {"http": network.https_proxy, "https": network.https_proxy}
