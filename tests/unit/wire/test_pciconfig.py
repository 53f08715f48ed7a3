from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.quantity import UNKNOWN
from appliance.wire.pciconfig import acs_control, speed, width


def space(chain: list[tuple[int, int]], acs: tuple[int, int] | None = None) -> bytes:
    """4 KiB with the headers of a chain of capabilities; `acs` is (capability, control)."""
    made = bytearray(4096)
    for at, header in chain:
        made[at : at + 4] = header.to_bytes(4, "little")
    if acs is not None:
        made[acs[0] + 6 : acs[0] + 8] = acs[1].to_bytes(2, "little")
    return bytes(made)


# Chains of real ports; lspci -vvv prints the control word of the first as SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+
# UpstreamFwd+.
HASWELL = [(0x100, 0x1101000B), (0x110, 0x1481000D), (0x148, 0x1D010001), (0x1D0, 0x0001000B)]
SKYLAKE = [(0x100, 0x14010001), (0x140, 0x2001000D), (0x200, 0x2201001E), (0x220, 0x00010019)]
ADAPTER = [(0x100, 0x1481000E), (0x148, 0x15410003), (0x154, 0x18C20001), (0x18C, 0x00010019)]


@pytest.mark.parametrize(
    ("data", "control"),
    [
        (space(HASWELL, (0x110, 0x1F)), 0x1F),
        (space(SKYLAKE, (0x140, 0x1D)), 0x1D),
        (space(SKYLAKE), 0),
        (space(ADAPTER), 0),
        (space([]), 0),
        (b"\xff" * 4096, 0),  # a device that has fallen off the bus
        (space(HASWELL, (0x110, 0x1F))[:256], 0),  # conventional PCI
        (space(HASWELL, (0x110, 0x1F))[:64], UNKNOWN),  # what others than root may read
        (space([(0x100, 0x1001000B)]), 0),  # a chain that bites its tail
    ],
)
def test_acs(data: bytes, control: object) -> None:
    assert acs_control(data) == control


@given(st.binary(max_size=4200))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    found = acs_control(data)
    assert found is UNKNOWN or 0 <= found <= 0xFFFF


def test_what_sysfs_writes_of_a_link() -> None:
    assert (speed("16.0 GT/s PCIe"), speed("2.5 GT/s"), speed("Unknown"), speed("")) == (16.0, 2.5, UNKNOWN, UNKNOWN)
    assert (width("16"), width("0"), width("255"), width("")) == (16, UNKNOWN, UNKNOWN, UNKNOWN)
