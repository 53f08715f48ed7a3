"""After a run that crashed: whether the launcher may go on in the same unit, and the word that lets it.

The supervisor decides restarts; the launcher only stays for a while so that it can be told. It does so where that can
gain something and nothing else is due, which is after a run that served: what fails to start is tried again from the
ground up. Where the kernel killed for want of memory systemd ends the unit, and so does the launcher: the counters of a
control group shall tell of one run alone.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance import names
from appliance.host import cgroup
from appliance.quantity import UNKNOWN

from .standby import Standby
from .verdict import Verdict


class Word:
    """The word about one run, named by its `start`.

    `obstacle` says why the next run would not be what a start of the whole unit gives; empty where it would.
    """

    def __init__(self, start: str, standby: Standby | None, obstacle: Callable[[], str]) -> None:
        self._start, self._standby, self._obstacle = start, standby, obstacle
        self.awaited = False
        self.said = False

    def is_worth_waiting_for(self, verdict: Verdict) -> bool:
        """Whether the end that was judged so is one after which the launcher may go on."""
        served = verdict.exit_status == names.LAUNCHER_ENGINE_DIED
        return served and self.may_come and cgroup.own_oom_kills() in (0, UNKNOWN)

    @property
    def may_come(self) -> bool:
        """Whether there is still something to go on with."""
        return self._standby is not None and self._standby.alive

    def say(self, start: str) -> str:
        """The run after `start` shall begin; why it will not, empty where it will. Once."""
        if not self.awaited or self.said:
            return "no run has ended that waits for the next one"
        if start != self._start:
            return f"the run that ended is {self._start}"
        obstacle = self._obstacle() if self.may_come else "the process to start from is gone"
        self.said = not obstacle
        return obstacle
