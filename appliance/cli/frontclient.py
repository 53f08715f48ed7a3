"""HTTP to the gateway through whatever stands in front of it, with the moment at which each piece arrives.

A certificate that does not hold ends everything before the key is sent. Redirects are not followed: a key would go
where nobody said.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from appliance import clock
from appliance.errors import Unreachable, UsageError

TIMEOUT = 30.0  # seconds for each step; a stream's own silences come on top


@dataclass(frozen=True, slots=True)
class Place:
    """A base URL in its parts; `prefix` is the path before `/v1`."""

    tls: bool
    host: str
    port: int
    prefix: str

    @property
    def is_loopback(self) -> bool:
        """Whether nothing leaves this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_place(url: str) -> Place:
    """Raises UsageError."""
    parts = urlsplit(url if "//" in url else f"https://{url}")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.query or parts.username:
        raise UsageError(f"{url!r} is no base URL", hint="for example https://llm.example.com/v1")
    return Place(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"))


class Front:
    """Whoever answers at a place. A connection of its own for each request."""

    def __init__(self, place: Place, key: str, authority: str | None) -> None:
        """`authority`: a file of certificates to trust instead of the system's. Raises UsageError."""
        self.place, self._key = place, key
        try:
            self._context = ssl.create_default_context(cafile=authority) if place.tls else None
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{authority}: {error.strerror or error}") from None

    def peer(self) -> tuple[str, float]:
        """TLS version and the certificate's last moment, in seconds since the epoch. Raises Unreachable, SSLError."""
        connection = self._connect(TIMEOUT)
        try:
            wrapped = connection.sock
            assert isinstance(wrapped, ssl.SSLSocket)
            shown = wrapped.getpeercert() or {}
            return wrapped.version() or "?", float(ssl.cert_time_to_seconds(str(shown.get("notAfter"))))
        finally:
            connection.close()

    @contextlib.contextmanager
    def ask(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float = TIMEOUT
    ) -> Iterator[http.client.HTTPResponse]:
        """A request, and its response with the head read. Raises Unreachable; reading the body raises OSError."""
        fields = {"Accept-Encoding": "gzip", "Connection": "close", "X-Request-Id": "llm-appliance-doctor"}
        if body is not None:
            fields["Content-Type"] = "application/json"
        if self._key:
            fields["Authorization"] = f"Bearer {self._key}"
        connection = self._connect(timeout)
        try:
            # A refusal of a large body may come while it is still sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self.place.prefix + path, body, fields)
            yield connection.getresponse()
        except http.client.HTTPException as error:
            raise Unreachable(f"{self._name}: the answer is no HTTP: {type(error).__name__}") from None
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        place = self.place
        connection = (
            http.client.HTTPConnection(place.host, place.port, timeout=timeout)
            if self._context is None
            else http.client.HTTPSConnection(place.host, place.port, timeout=timeout, context=self._context)
        )
        try:
            connection.connect()
        except ssl.SSLError:
            raise
        except socket.gaierror:
            raise Unreachable(f"{place.host}: this name is not known") from None
        except OSError as error:
            raise Unreachable(
                f"{self._name} does not answer: {(error.strerror or 'no answer in time').lower()}"
            ) from None
        return connection

    @property
    def _name(self) -> str:
        return f"{self.place.host}:{self.place.port}"


class Reader:
    """The decoded body of a response, piece by piece, each with its moment."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.encoding = (response.getheader("Content-Encoding") or "").lower()
        self._inflater = zlib.decompressobj(31) if self.encoding == "gzip" else None
        self.at = clock.monotonic()  # of the newest byte

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """Until the body ends or the connection does, which is no error here: what came is judged."""
        while True:
            try:
                data = self._response.read1(65536)
                now = clock.monotonic()
                if not data:
                    return
                data = self._inflater.decompress(data) if self._inflater is not None else data
            except (OSError, http.client.HTTPException, zlib.error):
                return
            self.at = now
            yield now, data
