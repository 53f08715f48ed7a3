"""What the gateway's parts read of one another; `app` is its only writer."""

from __future__ import annotations

from typing import Protocol

from appliance.config.model import Config
from appliance.config.source import Effective

from .allowances import Allowances
from .auth import Gatekeeper
from .engines import Engines
from .exchange import Exchange
from .ledger import Ledger
from .metrics import Metrics
from .predecessors import Predecessors
from .quarantine import Quarantines
from .server import ClientServer
from .tasks import Tasks
from .throughput import TokenCounts


class State(Protocol):
    """The process as its admin routes see it."""

    config: Config | None
    config_path: str
    effective: Effective
    engines: Engines
    gatekeeper: Gatekeeper
    allowances: Allowances
    exchanges: set[Exchange]
    metrics: Metrics
    ledger: Ledger
    server: ClientServer
    predecessors: Predecessors
    tasks: Tasks
    quarantines: Quarantines
    draining: bool
    started: float
    pid: int
    audit_directory: str | None
    throughput: TokenCounts
    loop_lag: float

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""

    def warn(self, text: str) -> None:
        """One line for the operator."""

    def engines_in_flight(self) -> int:
        """Calls admitted and not released."""
