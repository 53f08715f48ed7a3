"""`python -m appliance.host.checkup.readspeed FILE BYTES SECONDS`: reads a file past the page cache, prints its speed.

A process of its own, since a disk that does not answer keeps whoever reads. It ends by itself after BYTES or SECONDS.
"""

from __future__ import annotations

import json
import mmap
import os
import sys

from appliance import clock

BLOCK = 4 << 20


def measure(path: str, most: int, limit: float) -> dict[str, object]:
    """Bytes read, seconds taken, and whether the cache was passed by. Raises OSError."""
    direct = True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # a file system that has no such thing
        descriptor, direct = os.open(path, os.O_RDONLY), False
    try:
        if not direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        # Memory of pages, as reading past the cache wants it.
        with mmap.mmap(-1, BLOCK) as buffer:
            begun = clock.monotonic()
            read = 0
            while read < most and clock.monotonic() - begun < limit:
                count = os.preadv(descriptor, [buffer], read)
                if count == 0:
                    break
                read += count
                if count % 4096:  # the end of the file
                    break
            took = clock.monotonic() - begun
    finally:
        os.close(descriptor)
    return {"read": read, "seconds": took, "direct": direct}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
