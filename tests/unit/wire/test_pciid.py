from __future__ import annotations

import pytest

from appliance.wire.pciid import pci_id


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("0000:65:00", "0000:65:00"),  # the kernel's
        ("00000000:65:00.0", "0000:65:00"),  # NVML's
        ("0000:3B:00.0", "0000:3b:00"),
        ("00010000:C1:00.0", "10000:c1:00"),  # a domain of its own behind a bridge
        ("65:00.0", "0000:65:00"),  # lspci's
        ("65:00", "0000:65:00"),
        ("0000:AF:1F.7", "0000:af:1f"),
        ("", ""),
        ("nonsense", ""),
        ("0000:65", ""),
        ("0000:65:00.8", ""),  # there are eight functions
        ("GPU-1234", ""),
    ],
)
def test_one_form(written: str, normal: str) -> None:
    assert pci_id(written) == normal
