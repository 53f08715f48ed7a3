from __future__ import annotations

import json

import pytest

from appliance.samples import Line
from appliance.wire.journalrecord import LONGEST, Entry, concerns, entry_of

BASE = {"__CURSOR": "s=1;i=2", "__MONOTONIC_TIMESTAMP": "12500000", "__REALTIME_TIMESTAMP": "9", "_BOOT_ID": "ab"}
XID = "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=VLLM::Worker, GPU has fallen off the bus."


def raw(**fields: object) -> bytes:
    return json.dumps({**BASE, **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            raw(_TRANSPORT="kernel", SYSLOG_IDENTIFIER="kernel", MESSAGE=XID),
            Line(t=12.5, src="kernel", msg=XID, proc="kernel", boot="ab"),
        ),
        (
            raw(
                _TRANSPORT="journal", _PID="1", UNIT="llm-engine@chat.service", SYSLOG_IDENTIFIER="systemd", MESSAGE="m"
            ),
            Line(t=12.5, src="systemd", msg="m", unit="llm-engine@chat.service", proc="systemd", boot="ab"),
        ),
        (raw(_TRANSPORT="journal", _PID="1", UNIT="cron.service", MESSAGE="Started cron"), None),
        (raw(_TRANSPORT="journal", _PID="1", MESSAGE="Reloading."), None),
        (
            raw(_TRANSPORT="journal", _PID="77", SYSLOG_IDENTIFIER="systemd-oomd", MESSAGE="Killed /system.slice/x"),
            Line(t=12.5, src="systemd", msg="Killed /system.slice/x", proc="systemd-oomd", boot="ab"),
        ),
        (raw(_TRANSPORT="kernel", MESSAGE=[78, 255, 10]), Line(t=12.5, src="kernel", msg="N�\n", boot="ab")),
        (raw(_TRANSPORT="kernel", MESSAGE=None), Line(t=12.5, src="kernel", msg="", boot="ab")),
        (raw(_TRANSPORT="kernel", MESSAGE="x" * 9000), Line(t=12.5, src="kernel", msg="x" * LONGEST, boot="ab")),
    ],
)
def test_entries(record: bytes, line: Line | None) -> None:
    assert entry_of(record) == Entry("s=1;i=2", line)


@pytest.mark.parametrize(
    "record",
    [b"", b"-- Logs begin", b"[]", b"{}", b"3", b'{"__CURSOR": "x", "__MONOTONIC_TIMESTAMP": "soon"}', b"[" * 100_000],
)
def test_what_is_no_entry(record: bytes) -> None:
    assert entry_of(record) is None


@pytest.mark.parametrize(
    ("line", "whose"),
    [
        (Line(t=1.0, src="kernel", msg=XID), {"chat", "chat-2"}),
        (Line(t=1.0, src="kernel", msg="oom-kill:task_memcg=/s.slice/llm-engine@chat.service,task=x,pid=7"), {"chat"}),
        (Line(t=1.0, src="systemd", proc="systemd-oomd", msg="Killed /s.slice/llm-engine@chat-2.service"), {"chat-2"}),
        (Line(t=1.0, src="systemd", unit="llm-engine@chat.service", msg="Failed with result 'signal'."), {"chat"}),
        (Line(t=1.0, src="systemd", unit="llm-engine@chat-2.service", msg="beside chat"), {"chat-2"}),
        (Line(t=1.0, src="systemd", unit="llm-gateway.service", msg="Started llm-gateway.service"), set()),
        (Line(t=1.0, src="systemd", unit="llm-supervisor.service", msg="chat: held"), {"chat"}),
        (Line(t=1.0, src="systemd", unit="llm-gateway.service", msg="engine chat-2 is gone"), {"chat-2"}),
        (Line(t=1.0, src="systemd", unit="llm-runtime.service", msg="Starting llm-chatter"), set()),
    ],
)
def test_whose_timeline_a_line_belongs_to(line: Line, whose: set[str]) -> None:
    assert {name for name in ("chat", "chat-2") if concerns(line, f"llm-engine@{name}.service", name)} == whose
