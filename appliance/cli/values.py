"""Texts of arguments as values; each raises ArgumentTypeError, whose words say what would be right."""

from __future__ import annotations

import argparse

from appliance.policy import flagnumbers


def count(text: str) -> int:
    """A whole number, 1 or more; `_` may part its digits."""
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return found


def tokens(text: str) -> int:
    """A number of tokens as vLLM reads it."""
    try:
        return flagnumbers.tokens(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens, like 32768 or 32K") from None


def contexts(text: str) -> tuple[int, ...]:
    """Numbers of tokens between commas, ascending."""
    return tuple(sorted({tokens(part) for part in text.split(",")}))
