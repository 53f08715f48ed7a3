from __future__ import annotations

import pytest

from appliance.quantity import UNKNOWN
from appliance.samples import Line, OomKill, Xid
from appliance.wire.kernellog import finding_of

CONSTRAINT = (
    "oom-kill:constraint={},nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/system.slice/x,"
    "task_memcg=/system.slice/system-llm\\x2dengine.slice/llm-engine@chat.service,task=VLLM::EngineCor,pid=4242,uid=998"
)


@pytest.mark.parametrize(
    ("src", "msg", "scope", "pid", "process", "unit"),
    [
        ("kernel", "Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:81234kB, anon-rss:1kB",
         "cgroup", 4242, "VLLM::EngineCor", ""),
        ("kernel", "Out of memory: Killed process 77 (VLLM::Worker_TP) total-vm:9kB, anon-rss:1kB, UID:998",
         "global", 77, "VLLM::Worker_TP", ""),
        ("kernel", "[ 99.1] Out of memory: Kill process 77 (python3) score 900 or sacrifice child",
         "global", 77, "python3", ""),
        ("kernel", CONSTRAINT.format("CONSTRAINT_MEMCG"), "cgroup", 4242, "VLLM::EngineCor", "llm-engine@chat.service"),
        ("kernel", CONSTRAINT.format("CONSTRAINT_NONE"), "global", 4242, "VLLM::EngineCor", "llm-engine@chat.service"),
        ("systemd", "llm-engine@chat.service: A process of this unit has been killed by the OOM killer.",
         "", UNKNOWN, "", "llm-engine@chat.service"),
        ("systemd", "llm-engine@chat.service: systemd-oomd killed 3 process(es) in this unit.",
         "oomd", UNKNOWN, "", "llm-engine@chat.service"),
        ("systemd", "Killed /system.slice/system-llm\\x2dengine.slice/llm-engine@chat.service due to memory pressure "
         "for /system.slice being 71.00% > 60.00% for > 20s with reclaim activity",
         "oomd", UNKNOWN, "", "llm-engine@chat.service"),
        ("systemd", "Killed /system.slice/nginx.service due to memory used (7) / total (8)", "oomd", UNKNOWN, "",
         "nginx.service"),
    ],
)  # fmt: skip
def test_kills(src: str, msg: str, scope: str, pid: object, process: str, unit: str) -> None:
    kill = finding_of(Line(t=3.0, src=src, msg=msg))
    assert isinstance(kill, OomKill)
    assert (kill.t, kill.scope, kill.pid, kill.process, kill.unit) == (3.0, scope, pid, process, unit)


def test_gpu_faults() -> None:
    xid = finding_of(Line(t=3.0, src="kernel", msg="NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."))
    assert isinstance(xid, Xid) and xid.number == 79


@pytest.mark.parametrize(
    ("src", "msg"),
    [
        ("journal", "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."),
        ("journal", "Out of memory: Killed process 77 (VLLM::Worker_TP)"),
        ("systemd", "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."),
        ("systemd", "llm-engine@chat.service: systemd-oomd killed 0 process(es) in this unit."),
        ("systemd", "llm-engine@chat.service: Main process exited, code=killed, status=9/KILL"),
        ("kernel", "oom_reaper: reaped process 4242 (VLLM::EngineCor), now anon-rss:0kB"),
        ("kernel", "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
    ],
)
def test_what_only_quotes_them_is_none(src: str, msg: str) -> None:
    assert finding_of(Line(t=0.0, src=src, msg=msg)) is None
