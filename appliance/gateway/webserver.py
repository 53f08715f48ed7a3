"""aiohttp's server, imported without what only its client needs.

At its import aiohttp reads the system's certificate authorities twice, for a client that the gateway never makes: a
sixth of the processor time of its start. Meanwhile the file to read is an empty one; contexts that are made later are
not touched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_FILE = "SSL_CERT_FILE"  # openssl(1): instead of the default file of authorities


@contextlib.contextmanager
def _without_authorities() -> Iterator[None]:
    given = os.environ.get(_FILE)
    os.environ[_FILE] = os.devnull
    try:
        yield
    finally:
        del os.environ[_FILE]
        if given is not None:
            os.environ[_FILE] = given


with _without_authorities():
    from aiohttp import ClientPayloadError, web
    from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["ClientPayloadError", "HttpProcessingError", "web"]
