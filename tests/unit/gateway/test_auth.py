"""Keys come and go while the gateway runs."""

from __future__ import annotations

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
