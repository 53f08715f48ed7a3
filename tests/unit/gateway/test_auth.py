"""Keys come and go while the gateway runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import clock
from appliance.config.model import Auth
from appliance.errors import ApiError
from appliance.gateway.auth import Gatekeeper
from appliance.host import keystore


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


def test_a_key_works_as_soon_as_it_was_made(file: str) -> None:
    reports: list[str] = []
    gatekeeper = Gatekeeper(reports.append)
    gatekeeper.configure(Auth(keys_file=file))
    with pytest.raises(ApiError, match="no key exists yet"):
        gatekeeper.principal("sk-unknown")
    key, secret = keystore.create(file, "alice", clock.wall())
    assert gatekeeper.principal(secret).key_id == key.id
    with pytest.raises(ApiError, match="not known"):
        gatekeeper.principal("sk-unknown")
    assert reports == []


@pytest.fixture
def open_directory() -> Iterator[str]:
    """One that every user may enter, and a user for whom modes count."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield directory
        if os.geteuid() != os.getuid():
            os.seteuid(os.getuid())


def test_a_file_whose_mode_was_put_right_is_read(open_directory: str) -> None:
    """An editor as root leaves a file that the gateway may not read; nothing but its mode is changed then."""
    file, reports = f"{open_directory}/keys.toml", list[str]()
    _, secret = keystore.create(file, "alice", clock.wall())
    os.chmod(file, 0o644)
    gatekeeper = Gatekeeper(reports.append)
    gatekeeper.configure(Auth(keys_file=file))
    keystore.revoke(file, "alice", clock.wall())
    os.chmod(file, 0)
    if os.getuid() == 0:
        os.seteuid(65534)
    gatekeeper.refresh()
    assert gatekeeper.principal(secret).name == "alice" and len(reports) == 1
    if os.getuid() == 0:
        os.seteuid(0)
    os.chmod(file, 0o644)
    gatekeeper.refresh()
    with pytest.raises(ApiError, match="revoked"):
        gatekeeper.principal(secret)


def test_a_file_that_was_put_back_with_its_time_is_read(file: str) -> None:
    _, secret = keystore.create(file, "alice", clock.wall())
    gatekeeper = Gatekeeper(lambda _: None)
    gatekeeper.configure(Auth(keys_file=file))
    before, text = os.stat(file), Path(file).read_text()
    Path(file).write_text(text.replace("alice", "carol"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    gatekeeper.refresh()
    assert gatekeeper.principal(secret).name == "carol"
