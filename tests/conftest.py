"""Shared by all tests: `packaging/` on the module path, so that `box` can be imported, bytecode, Hypothesis' habits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.append(str(Path(__file__).resolve().parents[1] / "packaging"))

# Hundreds of processes are started from this tree: without bytecode each compiles the program anew, half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts tests in the background has them ignore Ctrl-C, and so the programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is slow, not wrong; examples are the same in every run, so that a failure is not a matter of luck.
settings.register_profile("appliance", deadline=None, suppress_health_check=[HealthCheck.too_slow],
                          derandomize=True, database=None, max_examples=80)  # fmt: skip
settings.load_profile("appliance")
