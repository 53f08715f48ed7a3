"""`python -m appliance.host.checkup.reach URL SECONDS CA_FILE`: asks a server for its head and prints how that went.

A process of its own, since looking up a name cannot be given a deadline; with the rights of the user that downloads,
and its proxies in the environment. Any answer is good: the server is there, the way to it is open.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import urllib.error
import urllib.request

from appliance import clock
from appliance.host.web import director


def main(url: str, limit: float, ca_file: str) -> None:
    """Ask, and print."""
    begun = clock.monotonic()
    status, fault, kind = 0, "", ""
    try:
        opener = director(ca_file)
        with opener.open(urllib.request.Request(url, method="HEAD"), timeout=limit) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except urllib.error.URLError as error:
        fault, kind = _words(error.reason)
    except (OSError, ValueError) as error:
        fault, kind = _words(error)
    took = round(clock.monotonic() - begun, 3)
    print(json.dumps({"status": status, "fault": fault, "kind": kind, "took": took}))


def _words(reason: object) -> tuple[str, str]:
    if isinstance(reason, socket.gaierror):
        return f"its name is not found ({(reason.strerror or 'no answer').lower()})", "dns"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate does not hold: {reason.verify_message}", "tls"
    if isinstance(reason, ssl.SSLError):
        return f"no TLS is spoken there: {(reason.reason or 'error').lower()}", "tls"
    if isinstance(reason, TimeoutError):
        return "no answer in time", "late"
    if isinstance(reason, ConnectionRefusedError):
        return "connection refused", "refused"
    if isinstance(reason, OSError):
        return (reason.strerror or str(reason)).lower(), "other"
    return str(reason), "other"


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
