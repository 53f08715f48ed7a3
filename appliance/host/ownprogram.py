"""Starting this program's own Python for a piece of work that may hang, and that must not take its caller along."""

from __future__ import annotations

import os
import sys


def python() -> tuple[str, ...]:
    """The interpreter as this process was started with it: the packaged program keeps other packages out."""
    return (sys.executable, *(("-S",) if sys.flags.no_site else ()))


def modules() -> dict[str, str]:
    """The packaged program finds its modules by itself; a child of it is told where they are."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
