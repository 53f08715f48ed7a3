"""Mode bits as another user meets them."""

from __future__ import annotations

import os
import stat

import pytest

from appliance.host.access import OVERFLOW, READ, Account, account, allowed


@pytest.mark.parametrize(
    ("mode", "uid", "groups", "expected"),
    [
        (0o400, 10, set(), True),
        (0o044, 10, set(), False),  # the owner's own bits count, and no others
        (0o040, 11, {20}, True),
        (0o404, 11, {20}, False),
        (0o004, 11, {21}, True),
        (0o440, 11, {21}, False),
        (0o000, 0, set(), True),
    ],
)
def test_mode_bits(mode: int, uid: int, groups: set[int], expected: bool) -> None:
    status = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, 10, 20, 0, 0, 0, 0))
    assert allowed(status, Account(uid, frozenset(groups)), READ) is expected


@pytest.mark.parametrize(("uid", "gid"), [(OVERFLOW, 20), (10, OVERFLOW)])
def test_whose_it_is_cannot_be_told_from_a_user_namespace(uid: int, gid: int) -> None:
    status = os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, uid, gid, 0, 0, 0, 0))
    assert allowed(status, Account(99, frozenset()), READ)


def test_accounts() -> None:
    root = account("root")
    assert root is not None and root.uid == 0 and 0 in root.groups
    assert account("no-such-user-here") is None
