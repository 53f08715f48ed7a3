from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.quantity import UNKNOWN
from appliance.samples import Gpu, Nvml
from appliance.wire.nvmlline import decode, encode

texts = st.text(max_size=20)
numbers = st.one_of(st.just(UNKNOWN), st.floats(allow_nan=False, allow_infinity=False))
counts = st.one_of(st.just(UNKNOWN), st.integers(0, 1 << 63))
gpus = st.builds(
    Gpu,
    pci=texts, uuid=texts, idx=counts, name=texts, util=numbers, mem_util=numbers, power_w=numbers,
    power_limit_w=numbers, temp_c=numbers, mem_used_mib=numbers, mem_total_mib=numbers,
    pids=st.one_of(st.just(UNKNOWN), st.tuples(), st.tuples(st.integers(1, 1 << 22))),
    recovery_action=counts,
    remapped_rows=st.one_of(st.just(UNKNOWN), st.tuples(st.integers(0), st.integers(0), st.booleans(), st.booleans())),
    ecc_uncorrected=counts, throttle=counts, error=texts, code=counts,
)  # fmt: skip
readings = st.builds(
    Nvml,
    t=st.floats(0, 1e9),
    gpus=st.lists(gpus, max_size=3).map(tuple),
    driver=texts,
    error=texts,
    code=counts,
)


@given(readings)
def test_there_and_back(reading: Nvml) -> None:
    line = encode(reading)
    assert "\n" not in line
    assert decode(line.encode()) == reading


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"3", b"{}", b'{"t": true, "gpus": []}', b'{"t": 1, "gpus": {}}', b"\xff"]
)
def test_what_is_no_reading(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_a_figure_of_a_wrong_type_is_unknown() -> None:
    gpu = b'{"util": "97", "power_w": true, "idx": 1.5, "name": 3, "remapped_rows": [1, 2], "pids": 7}'
    line = b'{"t": 1, "gpus": [' + gpu + b", 5]}"
    assert decode(line) == Nvml(t=1.0, gpus=(Gpu(),))
