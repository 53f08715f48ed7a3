"""The processes of one engine from look to look: what each used since the last one, and which are gone."""

from __future__ import annotations

from appliance import names
from appliance.host.proc import CGROUPS, PROC, Process, read_wchan, unit_processes
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Proc

MOST = 200  # of one engine; compilers come in dozens


class Processes:
    """Remembers the last look. Reads files, tens of microseconds for each process."""

    def __init__(self, *, cgroups: str = CGROUPS, proc: str = PROC) -> None:
        self._cgroups, self._proc = cgroups, proc
        self._before: dict[tuple[int, int], Process] = {}
        self._at = 0.0

    def look(self, control_group: str, t: float) -> list[Proc]:
        """Every process, then the ends of those that were there before. Nothing when the group cannot be read.

        Processes that only stand by to be forked do no work that could be missed.
        """
        found = unit_processes(control_group, cgroups=self._cgroups, proc=self._proc)
        if found is UNKNOWN:
            return []
        now = {(each.pid, each.started): each for each in found[:MOST] if each.comm != names.STANDBY_PROCESS}
        samples = [self._sample(who, each, control_group, t) for who, each in now.items()]
        samples += [
            Proc(t=t, pid=each.pid, ppid=each.parent, name=each.comm, cgroup=control_group, event="exit")
            for who, each in self._before.items()
            if who not in now
        ]
        self._before, self._at = now, t
        return samples

    def _sample(self, who: tuple[int, int], process: Process, control_group: str, t: float) -> Proc:
        before = self._before.get(who)
        used: Maybe[float] = UNKNOWN
        if before is not None and t > self._at:
            used = round(100.0 * (process.cpu_s - before.cpu_s) / (t - self._at), 1)
        return Proc(
            t=t,
            pid=process.pid,
            ppid=process.parent,
            name=process.comm,
            state=process.state,
            cpu_pct=used,
            # Only in D does it tell anything that the state does not.
            wchan=read_wchan(process.pid, self._proc) if process.state == "D" else "",
            cgroup=control_group,
        )
