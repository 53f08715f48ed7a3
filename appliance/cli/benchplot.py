"""Where a ladder's picture goes: a file, SVG or PNG by its name, or the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from appliance.errors import UsageError
from appliance.host import files
from appliance.policy.loadfigures import Step, Target
from appliance.wire.drawing import Drawing, svg
from appliance.wire.png import png

from . import benchchart, output

TERMINAL = "-"
WRITERS: dict[str, Callable[[Drawing], bytes]] = {".svg": svg, ".png": png}


def check(place: str | None) -> None:
    """Refuse a picture that cannot be written before anything is measured. Raises UsageError."""
    if place is None or place == TERMINAL:
        return
    if os.path.splitext(place)[1] not in WRITERS:
        raise UsageError(f"--plot {place}: a picture is a .svg or a .png file, or - for the terminal")
    directory = os.path.dirname(place) or "."
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        raise UsageError(f"--plot {place}: {directory} is no directory that can be written")


def draw(place: str, steps: Sequence[Step], target: Target, title: str) -> None:
    """Draw it. Raises OSError."""
    if place == TERMINAL:
        full = "█" if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else "#"
        print("\n" + "\n".join(benchchart.bars(steps, target, full)))
        return
    write = WRITERS[os.path.splitext(place)[1]]
    files.replace(place, write(benchchart.drawing(steps, target, title)))
    output.note(f"drawn: {place}")
