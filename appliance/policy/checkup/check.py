"""The form of a check: a name, and a function from facts and configuration to what is to be said under that name.

A verdict is WRONG only for what keeps an engine or the gateway from working; what works and will hurt is a warning.
What was not looked at is unknown, never good, and what means nothing on this machine is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from appliance.config.model import Config
from appliance.hostfacts import HostFacts, NotKnown
from appliance.policy.finding import Finding, Verdict

ROOT_SEES = "root sees it: sudo llm-appliance doctor"


@dataclass(frozen=True, slots=True)
class Said:
    """A finding before it has its check's name."""

    verdict: Verdict
    evidence: str
    remedy: str = ""


Judge: TypeAlias = Callable[[HostFacts, Config], Iterable[Said]]


@dataclass(frozen=True, slots=True)
class Check:
    """One question. `group` is the heading it stands under."""

    name: str
    group: str
    judge: Judge

    def findings(self, facts: HostFacts, config: Config) -> Iterator[Finding]:
        """What is to be said; nothing where another check says it for this one."""
        for said in self.judge(facts, config):
            yield Finding(self.name, said.verdict, said.evidence, said.remedy)


def good(evidence: str) -> Said:
    """Looked at, and as it should be."""
    return Said(Verdict.OK, evidence)


def warning(evidence: str, remedy: str) -> Said:
    """Works, and will hurt."""
    return Said(Verdict.WARN, evidence, remedy)


def wrong(evidence: str, remedy: str) -> Said:
    """Does not work, or not for long."""
    return Said(Verdict.FAIL, evidence, remedy)


def unknown(why: NotKnown | str, remedy: str = "") -> Said:
    """Could not be looked at."""
    return Said(Verdict.UNKNOWN, f"not known: {why.why if isinstance(why, NotKnown) else why}", remedy)


def skipped(why: str) -> Said:
    """Means nothing here."""
    return Said(Verdict.SKIPPED, why)


def listed(parts: Iterable[str], most: int = 6) -> str:
    """Parts in a row, a long row cut with the number of those left out."""
    every = list(parts)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
