"""Whether another user may read a file, by its mode bits: processes of ours run as users of their own."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass

READ, WRITE, ENTER = stat.S_IROTH, stat.S_IWOTH, stat.S_IXOTH  # bits of the "others" triple, as `allowed` takes them
OVERFLOW = 65534  # an owner or group that this process's user namespace does not know


@dataclass(frozen=True, slots=True)
class Account:
    """A user with all groups that the user is in."""

    uid: int
    groups: frozenset[int]


def account(user: str) -> Account | None:
    """The account of a user; None where there is no such user: not an installed appliance."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return None
    return Account(found.pw_uid, frozenset({found.pw_gid, *(g.gr_gid for g in grp.getgrall() if user in g.gr_mem)}))


def allowed(status: os.stat_result, who: Account, bit: int) -> bool:
    """Whether mode bits give a user `bit`. Access lists are not looked at."""
    if who.uid == 0:
        return True
    if OVERFLOW in (status.st_uid, status.st_gid):
        return True  # seen from a user namespace: nobody can tell whose it is
    if status.st_uid == who.uid:
        return bool(status.st_mode & bit << 6)
    if status.st_gid in who.groups:
        return bool(status.st_mode & bit << 3)
    return bool(status.st_mode & bit)


def user_name(uid: int) -> str:
    """The name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
