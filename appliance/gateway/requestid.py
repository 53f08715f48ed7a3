"""Ids for requests whose clients sent none: unlike all others, and no secret."""

from __future__ import annotations

import random

_CHANCE = random.Random()  # seeded by the system; asking it anew for each id costs as much as reading a head


def new_request_id() -> str:
    """32 hexadecimal digits."""
    return f"{_CHANCE.getrandbits(128):032x}"
