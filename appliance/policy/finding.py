"""What a check of `doctor` concludes: one line for people, with what was seen and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """How it stands."""

    OK = "ok"
    WARN = "warn"  # works, and will hurt
    FAIL = "fail"
    UNKNOWN = "unknown"  # could not be looked at; the evidence says why
    SKIPPED = "skipped"  # means nothing on this machine; the evidence says why


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` is what was seen, `remedy` what to do about it: empty where nothing is to be done."""

    name: str
    verdict: Verdict
    evidence: str
    remedy: str = ""
