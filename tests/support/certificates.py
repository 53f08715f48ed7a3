"""Certificates that tests make for themselves."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def certificate(directory: Path, name: str, days: int = 1) -> Path:
    """A self-made certificate for `name`, localhost and 127.0.0.1: `key.pem` and, returned, `cert.pem`."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", str(days), "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1",
         "-keyout", directory / "key.pem", "-out", directory / "cert.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return directory / "cert.pem"


def trusting(path: Path) -> ssl.SSLContext:
    """A client's context that trusts this certificate alone."""
    return ssl.create_default_context(cafile=str(path))
