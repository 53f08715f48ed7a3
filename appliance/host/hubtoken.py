"""The access token of a hub, from the operator's file."""

from __future__ import annotations

import re
from pathlib import Path

_WORD = re.compile(rb"[!-~]*")  # what may stand in a header


def read(path: str) -> str:
    """The token in a file; empty for an empty one. Raises OSError, and ValueError with what is wrong with its content:
    editors of other systems write UTF-16, and what is pasted may hold more than the token."""
    content = Path(path).read_bytes().strip()
    if _WORD.fullmatch(content) is None:
        raise ValueError("it must hold the token alone, one word of ASCII letters and digits")
    return content.decode()
