"""Findings in the lines of the kernel and of systemd: GPU faults, and kills for want of memory.

    kernel   oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/system.slice/.../llm-engine@chat.service,task=...,pid=
    kernel   Memory cgroup out of memory: Killed process 7 (VLLM::EngineCor) total-vm:...
    kernel   Out of memory: Killed process 7 (VLLM::Worker_TP) total-vm:...
    systemd  llm-engine@chat.service: A process of this unit has been killed by the OOM killer.
    systemd  llm-engine@chat.service: systemd-oomd killed 3 process(es) in this unit.
    oomd     Killed /system.slice/.../llm-engine@chat.service due to memory pressure for /system.slice being 71% > ...

One kill gives several of these lines; none of them alone is sure to come. An engine's own output is never searched
here: a line that quotes the kernel is no kernel line.
"""

from __future__ import annotations

import re

from appliance.quantity import UNKNOWN
from appliance.samples import Line, OomKill, Xid
from appliance.wire.xid import xid_of

_CONSTRAINT = re.compile(
    r"oom-kill:constraint=(?P<constraint>CONSTRAINT_\w+).*task_memcg=(?P<cgroup>[^,]*)"
    r",task=(?P<task>[^,]*),pid=(?P<pid>\d+)"
)
_KILLED = re.compile(r"(?P<memcg>Memory cgroup o|O)ut of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<task>[^)]*)\)")
_UNIT = re.compile(
    r"(?P<unit>\S+\.(?:service|scope)): (?:A process of this unit has been killed by the OOM killer"
    r"|(?P<oomd>systemd-oomd killed (?P<count>\d+) process))"
)
_OOMD = re.compile(r"Killed (?P<cgroup>/\S+) due to memory (?:pressure|used)")


def finding_of(line: Line) -> Xid | OomKill | None:
    """What a line of the kernel or of systemd reports; None for one that reports neither, and for any other log."""
    if line.src == "kernel":
        return xid_of(line.msg, line.t) or _kernel_kill(line)
    if line.src == "systemd":
        return _systemd_kill(line)
    return None


def _kernel_kill(line: Line) -> OomKill | None:
    if match := _CONSTRAINT.search(line.msg):
        scope = "cgroup" if match["constraint"] == "CONSTRAINT_MEMCG" else "global"
        unit = _unit_of(match["cgroup"])
        return OomKill(t=line.t, scope=scope, pid=int(match["pid"]), process=match["task"], unit=unit)
    if match := _KILLED.search(line.msg):
        scope = "cgroup" if match["memcg"].startswith("Memory") else "global"
        return OomKill(t=line.t, scope=scope, pid=int(match["pid"]), process=match["task"])
    return None


def _systemd_kill(line: Line) -> OomKill | None:
    if match := _UNIT.search(line.msg):
        if match["oomd"] and match["count"] == "0":
            return None
        return OomKill(t=line.t, scope="oomd" if match["oomd"] else "", pid=UNKNOWN, unit=match["unit"])
    if match := _OOMD.search(line.msg):
        return OomKill(t=line.t, scope="oomd", unit=_unit_of(match["cgroup"]))
    return None


def _unit_of(cgroup: str) -> str:
    """The innermost unit of a control group's path; empty when there is none."""
    parts = [part for part in cgroup.split("/") if part.endswith((".service", ".scope"))]
    return parts[-1] if parts else ""
