#!/usr/bin/env python3
"""Write etc/reference.toml and the manual page of the configuration from the program's table (run from the root)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from appliance.config import sample  # noqa: E402 (needs the path above)

(ROOT / "etc/reference.toml").write_text(sample.reference())
(ROOT / "packaging/man/llm-appliance-config.5").write_text(sample.manual())
