from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.quantity import UNKNOWN
from appliance.samples import Xid
from appliance.wire.xid import REPEAT_S, Repeats, xid_of


@pytest.mark.parametrize(
    ("line", "number", "pci", "pid", "process"),
    [
        ("NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=VLLM::Worker, GPU has fallen off the bus.",
         79, "0000:65:00", 1234, "VLLM::Worker"),
        ("NVRM: Xid (PCI:0000:48:00): 45, pid=22884, name=VLLM::EngineCor, channel 0x0000000a",
         45, "0000:48:00", 22884, "VLLM::EngineCor"),
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid='<unknown>', name=<unknown>, Timeout waiting for RPC from GSP! Expected "
         "function 76 (GSP_RM_CONTROL)", 119, "0000:3b:00", UNKNOWN, ""),
        ("NVRM: Xid (PCI:0000:0b:00): 119, pid=11431, name=vllm, Timeout after 45s of waiting for RPC response",
         119, "0000:0b:00", 11431, "vllm"),
        ("NVRM: Xid (PCI:0000:70:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 1, SM 1): MMU Fault",
         13, "0000:70:00", UNKNOWN, ""),
        ("[   12.3] NVRM: Xid (PCI:0000:C1:00): 31, pid=7, name=VLLM::Worker_TP, Ch 00000008, intr 00000000. MMU Fault",
         31, "0000:c1:00", 7, "VLLM::Worker_TP"),
        ("NVRM: Xid (PCI:0000:01:00.0): 48", 48, "0000:01:00", UNKNOWN, ""),
    ],
)  # fmt: skip
def test_lines_of_real_drivers(line: str, number: int, pci: str, pid: object, process: str) -> None:
    xid = xid_of(line, 5.0)
    assert xid is not None
    assert (xid.number, xid.pci, xid.pid, xid.process, xid.switch, xid.t) == (number, pci, pid, process, False, 5.0)


def test_what_it_says_is_kept() -> None:
    xid = xid_of("NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=x, GPU has fallen off the bus.", 0.0)
    assert xid is not None and xid.detail == "GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "pci", "action"),
    [
        ("NVRM: GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "", 2),
        ("NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
         "0000:65:00", 1),
        ("NVRM: Xid (PCI:0000:65:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x1 "
         "(GPU Reset Required) to 0x0 (None)", "0000:65:00", 0),
        ("NVRM: Xid (PCI:0000:65:00): 154, something else", "0000:65:00", UNKNOWN),
    ],
)  # fmt: skip
def test_the_drivers_own_advice(line: str, pci: str, action: object) -> None:
    xid = xid_of(line, 0.0)
    assert xid is not None
    assert (xid.number, xid.pci, xid.recovery_action) == (154, pci, action)


def test_a_switchs_fault_is_numbered_apart() -> None:
    xid = xid_of("nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1 Engine instance 0", 0.0)
    assert xid is not None
    assert (xid.number, xid.pci, xid.switch) == (24007, "0000:aa:00", True)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "Xid (PCI:0000:65:00): 79",
        "nvidia-nvswitch1: opened",
        "NVRM: Xid",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert xid_of(line, 0.0) is None


@given(st.text(max_size=80), st.integers(0, 999))
def test_any_tail_leaves_number_and_address_alone(tail: str, number: int) -> None:
    xid = xid_of(f"NVRM: Xid (PCI:0000:65:00): {number}, {tail}", 0.0)
    assert xid is not None
    assert (xid.number, xid.pci) == (number, "0000:65:00")
    assert xid_of(tail, 0.0) is None or "NVRM" in tail


def test_one_fault_prints_many_lines() -> None:
    repeats = Repeats()
    burst = [Xid(t=t, number=45, pci="0000:65:00") for t in (0.0, 0.1, 3.0, 9.9)]
    assert [repeats.is_new(xid) for xid in burst] == [True, False, False, False]
    others = [
        Xid(t=9.9, number=45, pci="0000:66:00"),
        Xid(t=9.9, number=13, pci="0000:65:00"),
        Xid(t=9.9, number=45, pci="0000:65:00", switch=True),
        Xid(t=REPEAT_S, number=45, pci="0000:65:00"),
    ]
    assert all(repeats.is_new(xid) for xid in others)


def test_a_changed_recovery_action_is_news() -> None:
    repeats = Repeats()
    said = [Xid(t=0.0, number=154, pci="0000:65:00", recovery_action=action) for action in (1, 2, 2)]
    assert [repeats.is_new(xid) for xid in said] == [True, True, False]
