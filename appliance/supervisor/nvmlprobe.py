"""`llm-appliance nvml-probe`: reads all GPUs once for each line on standard input, one JSON line back.

A process apart from the supervisor, because a sick driver keeps whoever asks it, and may never let it go. It ends with
its standard input. It also ends after a reading that failed as a whole: another process finds the library and the
driver as they are then.
"""

from __future__ import annotations

import os
import sys

from appliance import clock
from appliance.host.nvml import Reader
from appliance.wire.nvmlline import encode


def main(arguments: list[str]) -> int:
    """Answer until nobody asks."""
    if arguments:
        print("usage: llm-appliance nvml-probe   (started by the supervisor)", file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    reader = Reader()
    try:
        while os.read(0, 4096):
            reading = reader.read(clock.monotonic())
            os.write(1, encode(reading).encode() + b"\n")
            if reading.error:
                break
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # nobody asks any more
    finally:
        reader.close()
    return 0
