"""Shared by all tests: `packaging/` on the module path, so that `box` can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "packaging"))
