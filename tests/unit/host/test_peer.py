from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from appliance.host.peer import OVERFLOW, is_trusted, uid_of


def test_the_kernel_says_who_asks() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert uid_of(one) == os.geteuid()


@pytest.mark.parametrize(
    ("uid", "uid_map", "trusted"),
    [
        (0, "0 0 4294967295", True),
        (os.geteuid(), "0 0 4294967295", True),
        (12345, "0 0 4294967295", False),
        (OVERFLOW, "         0          0 4294967295\n", False),  # nobody, outside a namespace
        (OVERFLOW, "0 0 1\n994 994 1\n", True),
        (12345, "0 0 1\n994 994 1\n", False),
    ],
)
def test_whom_it_believes(tmp_path: Path, uid: int, uid_map: str, trusted: bool) -> None:
    (tmp_path / "uid_map").write_text(uid_map)
    assert is_trusted(uid, uid_map=str(tmp_path / "uid_map")) is trusted
    assert not is_trusted(OVERFLOW, uid_map=str(tmp_path / "nowhere"))
