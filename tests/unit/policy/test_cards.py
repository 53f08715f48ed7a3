"""Names of cards, as drivers and people write them."""

from __future__ import annotations

import pytest

from appliance.policy.cards import CARDS, GIB, Card, find, near, parse


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("A100", "A100 40GB"),  # the smaller one
        ("A100 80G", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA A10", "A10"),
        ("Radeon", None),
        ("", None),
        ("RTX", None),
    ],
)
def test_find(written: str, name: str | None) -> None:
    found = find(written)
    assert (found.name if found else None) == name


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_table_holds_what_can_be(card: Card) -> None:
    assert find(card.name) is card
    assert 8 * GIB < card.memory < 300 * GIB
    assert card.capability in (70, 75, 80, 86, 89, 90, 100, 103, 120, 121)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("4x RTX 4090", ["RTX 4090"] * 4),
        ("2×h200", ["H200"] * 2),
        ("8 * H100", ["H100"] * 8),
        ("L4", ["L4"]),
        ("2x A100 80GB, 1x L4", ["A100 80GB", "A100 80GB", "L4"]),
    ],
)
def test_parse(text: str, names: list[str]) -> None:
    assert [card.name for card in parse(text)] == names


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "names no card"), ("2x ", "not in the table"), ("2x RTX 4095", "known are"), ("99x L4", "1 to 64"),
     ("0x L4", "1 to 64"), ("2x 5090 Laptop", "close are RTX 5090"), ("2x L4,", "names no card")],
)  # fmt: skip
def test_what_is_no_list_of_cards(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_near_names_share_a_number() -> None:
    assert near("RTX 5090 D") == ("RTX 5090",)
