"""`incident.json`: what an incident is about, and what was collected for it.

An incident is named by its time, its engine and its cause, so that a listing by name is one by time:
`20261129T173000Z-chat-hang-collective`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone

ID = re.compile(r"\d{8}T\d{6}Z-[a-z0-9][a-z0-9-]{0,160}")
ASKED = "asked"  # stands for the cause of an incident that an operator asked for
AGAIN_KEPT = 50
_TEXTS = ("id", "engine", "kind", "cause", "reason", "verdict", "action", "run", "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One incident. `kind` is `death` (the engine ended by itself), `kill` (the supervisor ends it) or `asked`.

    `run` is systemd's name of the run in question; `again` are the instants of later deaths of the same cause that
    have no bundle of their own; `outcome` says what became of a kill. `facts` are versions, digests, the boot.
    """

    id: str
    engine: str
    at: float
    kind: str
    cause: str
    reason: str
    verdict: str = ""
    action: str = ""
    evidence: tuple[str, ...] = ()
    run: str = ""
    again: tuple[float, ...] = ()
    outcome: str = ""
    took_s: float = 0.0
    collected: Mapping[str, int] = field(default_factory=dict)  # file: bytes
    missing: Mapping[str, str] = field(default_factory=dict)  # file: why
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def value(self) -> dict[str, object]:
        """The JSON object."""
        return asdict(self)


def incident_id(at: float, engine: str, cause: str) -> str:
    """The name of an incident at an instant (seconds since the epoch)."""
    stamp = datetime.fromtimestamp(at, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{engine}-{cause or ASKED}"


def parse(value: Mapping[str, object] | None) -> Incident | None:
    """An incident from its JSON; None for what is none. Fields that are missing or strange keep their defaults."""
    if value is None or not ID.fullmatch(str(value.get("id"))):
        return None
    texts = {key: str(value.get(key) or "") for key in _TEXTS}
    collected, missing, facts = (_mapping(value.get(key)) for key in ("collected", "missing", "facts"))
    return Incident(
        id=texts["id"],
        engine=texts["engine"],
        at=_number(value.get("at")),
        kind=texts["kind"],
        cause=texts["cause"],
        reason=texts["reason"],
        verdict=texts["verdict"],
        action=texts["action"],
        run=texts["run"],
        outcome=texts["outcome"],
        took_s=_number(value.get("took_s")),
        evidence=tuple(str(each) for each in _list(value.get("evidence"))),
        again=tuple(_number(each) for each in _list(value.get("again"))),
        collected={name: int(_number(size)) for name, size in collected.items()},
        missing={name: str(why) for name, why in missing.items()},
        facts=facts,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
