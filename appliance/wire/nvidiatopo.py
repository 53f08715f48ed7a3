"""`nvidia-smi topo`: two matrices of GPUs by their numbers, one of links (`-m`), one of permissions (`-p2p r`).

Columns are parted by tabs or, in what people paste, by blanks; network adapters have rows and columns of their own,
and headings of several words stand at the end. Newer drivers underline the heading with escape codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from appliance.gpufacts import Topology

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d+)")
_HEADINGS = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU-NUMA Affinity")
_SELF = "X"


def parse(links: str, peers: str = "") -> Topology:
    """What either text tells; a text without a matrix tells nothing."""
    numa: dict[int, str] = {}
    matrix = dict(_pairs(links, numa))
    return Topology(links=matrix, numa=numa, peer=dict(_pairs(peers, {})))


def _pairs(text: str, numa: dict[int, str]) -> Iterator[tuple[tuple[int, int], str]]:
    """(lower number, higher number) -> the word of the matrix; fills the NUMA node of each GPU."""
    columns: Sequence[str] = ()
    for raw in text.splitlines():
        line = _ESCAPES.sub("", raw).strip()
        if line.lower().startswith("legend"):
            return
        if not columns:
            found = _HEADINGS.split(line)[0].split()
            if found and _GPU.fullmatch(found[0]):
                columns = [*found, *_HEADINGS.findall(line)]
            continue
        words = line.split()
        row = _GPU.fullmatch(words[0]) if words else None
        if row is None or len(words) < 2:
            continue
        yield from _row(int(row[1]), dict(zip(columns, words[1:], strict=False)), numa)


def _row(number: int, cells: Mapping[str, str], numa: dict[int, str]) -> Iterator[tuple[tuple[int, int], str]]:
    for column, word in cells.items():
        other = _GPU.fullmatch(column)
        if other is not None and int(other[1]) > number and word != _SELF:
            yield (number, int(other[1])), word
        elif column == "NUMA Affinity" and word != "N/A":
            numa[number] = word
