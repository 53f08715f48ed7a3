"""Graphics cards that people serve models with: memory and compute capability, for planning without the card.

Memory is what CUDA reports as the device's total, on which vLLM's `gpu_memory_utilization` is a share; it is less than
the figure on the box. Sources: totals in vLLM's own start-up lines ("Free memory on device (23.08/23.53 GiB)") and
nvidia-smi's tables; cards with ECC are listed with ECC on, as they are delivered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from appliance.quantity import UNKNOWN, Maybe

GIB = 1 << 30
RESERVED = GIB // 2  # what NVML counts and CUDA does not give; 0.4 to 0.6 GiB on cards of 24 to 141 GiB


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of card. `capability` is CUDA's compute capability as vLLM writes it: 89 is 8.9."""

    name: str
    memory: int  # bytes
    capability: int
    unified: bool = False  # the CPU's memory is the GPU's


def _card(name: str, gib: float, capability: int, unified: bool = False) -> Card:
    return Card(name, int(gib * GIB), capability, unified)


CARDS: tuple[Card, ...] = (
    _card("T4", 14.56, 75),
    _card("V100 16GB", 15.77, 70),
    _card("V100 32GB", 31.73, 70),
    _card("RTX 2080 Ti", 10.57, 75),
    _card("RTX 3060", 11.63, 86),
    _card("RTX 3080", 9.64, 86),
    _card("RTX 3090", 23.56, 86),
    _card("RTX A4000", 15.6, 86),
    _card("RTX A5000", 23.57, 86),
    _card("RTX A6000", 47.4, 86),
    _card("A10", 22.06, 86),
    _card("A16", 14.5, 86),
    _card("A30", 23.5, 80),
    _card("A40", 44.35, 86),
    _card("A100 40GB", 39.39, 80),
    _card("A100 80GB", 79.15, 80),
    _card("RTX 4060 Ti 16GB", 15.6, 89),
    _card("RTX 4070 Ti SUPER", 15.6, 89),
    _card("RTX 4080", 15.6, 89),
    _card("RTX 4090", 23.53, 89),
    _card("RTX 4000 Ada", 19.54, 89),
    _card("RTX 5000 Ada", 31.48, 89),
    _card("RTX 6000 Ada", 47.4, 89),
    _card("L4", 22.03, 89),
    _card("L40", 44.4, 89),
    _card("L40S", 44.39, 89),
    _card("H20", 95.1, 90),
    _card("H100", 79.18, 90),
    _card("H100 NVL", 93.1, 90),
    _card("H200", 139.81, 90),
    _card("GH200", 94.5, 90),
    _card("B200", 178.35, 100),
    _card("B300", 268.0, 103),
    _card("RTX 5070 Ti", 15.47, 120),
    _card("RTX 5080", 15.47, 120),
    _card("RTX 5090", 31.36, 120),
    _card("RTX PRO 4500", 31.36, 120),
    _card("RTX PRO 5000", 47.3, 120),
    _card("RTX PRO 6000", 94.97, 120),
    _card("GB10", 119.7, 121, unified=True),
)

_NOISE = re.compile(r"\b(nvidia|geforce|tesla|quadro|graphics|blackwell|workstation|server|edition|generation|max q)\b")
_FORM = re.compile(r"\b(pcie|sxm\d?|hbm3e?|hbm2e?)\b")


_SIZE = re.compile(r"\b(\d+)\s*g(?:i?b)?\b")


def _key(name: str, *, sized: bool = True) -> str:
    """A name without maker, form factor and punctuation: `NVIDIA A100-SXM4-80GB` is `a10080gb`, unsized `a100`."""
    text = re.sub(r"\bdgx spark\b", "gb10", name.lower())
    text = _FORM.sub(" ", _NOISE.sub(" ", text.replace("-", " ")))
    text = _SIZE.sub(r"\1gb" if sized else " ", text)
    return re.sub(r"[^a-z0-9]", "", text)


def find(name: str) -> Card | None:
    """The card that a driver's or a person's name means; None when it is not in the table.

    A name that leaves the memory open (`A100`) means the smaller card: a plan must not promise what may not be there.
    """
    key, bare = (_key(name, sized=sized).removeprefix("rtx") for sized in (True, False))
    if not bare:
        return None
    exact = next((card for card in CARDS if _key(card.name).removeprefix("rtx") == key), None)
    if exact is not None:
        return exact
    same = [card for card in CARDS if _key(card.name, sized=False).removeprefix("rtx") == bare]
    return min(same, key=lambda card: card.memory) if same else None


def of_gpu(name: str, memory: Maybe[int]) -> Card | None:
    """The card of a GPU as its driver names it; `memory` is NVML's total in bytes."""
    card = find(name)
    if card is not None and memory is not UNKNOWN and not 0.9 < (memory - RESERVED) / card.memory < 1.1:
        return replace(card, name=name, memory=memory - RESERVED)  # the same chip with other memory
    return card


def near(name: str) -> tuple[str, ...]:
    """Names in the table that share a word or number with one that was not found."""
    words = set(re.findall(r"[a-z]*\d+[a-z]*", name.lower()))
    return tuple(card.name for card in CARDS if words & set(re.findall(r"[a-z]*\d+[a-z]*", card.name.lower())))


_GROUP = re.compile(r"\s*(?:(\d{1,2})\s*[x×*]\s*)?(.+?)\s*", re.IGNORECASE)
MOST_GPUS = 64


def parse(text: str) -> tuple[Card, ...]:
    """The cards of `4x RTX 4090` or `2x H100, 1x L4`. Raises ValueError with what would be right."""
    cards: list[Card] = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} names no card: write them like '4x RTX 4090'")
        count = int(match[1] or 1)
        card = find(match[2])
        if card is None:
            close = near(match[2])
            known = ", ".join(close or [card.name for card in CARDS])
            raise ValueError(
                f"{match[2]!r} is not in the table of cards; {'close are' if close else 'known are'} {known}"
            )
        if not 0 < count <= MOST_GPUS:
            raise ValueError(f"{count} cards cannot be planned for: 1 to {MOST_GPUS}")
        cards += [card] * count
    return tuple(cards)
