"""Matrices as people have published them: tabs, blanks, adapters, underlined headings."""

from __future__ import annotations

from appliance.wire.nvidiatopo import parse

LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n  GPU0 PHB\n"
PAIR = """
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A
"""
TWO_SOCKETS = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPXB\tSYS\tSYS\t0-27,56-83\t0
GPU1\tPXB\t X \tSYS\tSYS\t0-27,56-83\t0
GPU2\tSYS\tSYS\t X \tPIX\t28-55,84-111\t1
GPU3\tSYS\tSYS\tPIX\t X \t28-55,84-111\t1
"""
ADAPTERS = """        GPU0    GPU1    mlx5_0  mlx5_1  CPU Affinity    NUMA Affinity
GPU0     X      NV6     PIX     SYS     0-23,48-71      0
GPU1    NV6      X      PIX     SYS     0-23,48-71      0
mlx5_0  PIX     PIX      X      SYS
mlx5_1  SYS     SYS     SYS      X
"""
PEERS = """ \tGPU0\tGPU1\t
 GPU0\tX\tGNS\t
 GPU1\tGNS\tX\t
"""


def test_a_pair_and_what_the_driver_lets_it_do() -> None:
    found = parse(PAIR + LEGEND, PEERS + LEGEND)
    assert (found.links, found.peer, found.numa) == ({(0, 1): "PHB"}, {(0, 1): "GNS"}, {0: "0", 1: "0"})


def test_two_processors() -> None:
    found = parse(TWO_SOCKETS + LEGEND)
    assert found.links == {(0, 1): "PXB", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "PIX"}
    assert found.numa == {0: "0", 1: "0", 2: "1", 3: "1"} and found.peer == {}


def test_adapters_are_no_gpus() -> None:
    found = parse(ADAPTERS + LEGEND)
    assert (found.links, found.numa) == ({(0, 1): "NV6"}, {0: "0", 1: "0"})


def test_a_text_without_a_matrix_tells_nothing() -> None:
    for text in ("", "No devices were found\n", "The -i command line argument must be used in conjunction with -n\n"):
        assert parse(text).links == {}
