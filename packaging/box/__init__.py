"""Throw-away Debian machines with a booted systemd, for the system tests and for trying the appliance.

Standard library only. `box.py` beside this file is the command; `from box import Box` is the library, with `packaging/`
on the module path.
"""

from __future__ import annotations

from .machine import Box, Result
from .places import BoxError

__all__ = ["Box", "BoxError", "Result"]
