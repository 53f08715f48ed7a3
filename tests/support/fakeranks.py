"""A runtime's Python that stands in for torch on GPUs: a program that tells, hangs or miscounts as it is told to.

Each way of a trial (all-reduce, copy, all-reduce without P2P) has a line of shell of its own.
"""

from __future__ import annotations

from pathlib import Path

GOOD = """echo '{"right": true, "bytes_s": 21474836480.0, "peer": true}'"""
WRONG = """echo '{"right": false}'"""
HANGS = "trap '' TERM; exec sleep 60"
BROKEN = "exit 3"
ERROR = """echo '{"right": false, "error": "DistBackendError: NCCL error in: init.cc:2006"}'"""


def runtime_python(directory: Path, *, nccl: str = GOOD, copy: str = GOOD, without_p2p: str = GOOD) -> Path:
    """The program; each way of a trial has its own behaviour. It notes each start in `calls` beside itself."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "python"
    path.write_text(
        f"""#!/bin/sh
echo "$3 $4 $CUDA_VISIBLE_DEVICES ${{NCCL_P2P_DISABLE:-}}" >> {directory}/calls
if [ "$3" = copy ]; then {copy}
elif [ -n "$NCCL_P2P_DISABLE" ]; then {without_p2p}
else {nccl}
fi
"""
    )
    path.chmod(0o755)
    return path
