"""Synthetic prompts of a wanted length, each different from its first words on, so that no prefix cache knows it.

Words are short and common, so that a tokenizer makes about one token of each; what it really makes is told by the
engine, and `fitted` goes by that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

_TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this from have or by one had not but "
    "what all were when we there can an your which their said if do will each about how up out them then she many some "
    "so these would other into has more her two like him see time could no make than first been its who now people my "
    "made over did down only way find use may water long little very after words called just where most know get "
    "through back much before go good new write our used me man too any day same right look think also around another "
    "came come work three word must because does part even place well such here take why things help put years "
    "different away again off went old number great tell men say small every found still between name should home big "
    "give air line set own under read last never us left end along while might next sound below saw something thought"
)
WORDS = tuple(_TEXT.split())
UNIQUE = 24  # words that no two prompts have in the same order; more than a block of any prefix cache
POOL = 1 << 14
FEW_WORDS = 4  # for a token at most: who counts fewer does not count prompts


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked: a model, tokens in and out, and how many words make the tokens in."""

    model: str
    chat: bool
    output_tokens: int
    words: int
    shared_words: int = 0
    ignore_eos: bool = True

    def fitted(self, wanted: int, counted: int) -> Shape:
        """With as many words as `wanted` tokens need, when the present number was counted as `counted` tokens."""
        each = counted / max(self.words, 1)
        words = self.words + round((wanted - counted) / max(each, 0.1))
        return replace(self, words=min(max(1, words), wanted * FEW_WORDS))


class Prompts:
    """An endless supply; the same seed gives the same prompts in the same order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        pool = self._random.choices(WORDS, k=POOL)
        self._shared = " ".join(self._random.choices(WORDS, k=POOL)).split(" ")
        self._pool = pool

    def text(self, shape: Shape) -> str:
        """One prompt."""
        shared = min(shape.shared_words, shape.words)
        fresh = shape.words - shared
        head = self._random.choices(WORDS, k=min(fresh, UNIQUE))
        words = [*self._repeat(self._shared, 0, shared), *head]
        words += self._repeat(self._pool, self._random.randrange(POOL), fresh - len(head))
        return " ".join(words)

    def body(self, shape: Shape, *, output_tokens: int | None = None) -> bytes:
        """One request."""
        tokens = output_tokens or shape.output_tokens
        text = self.text(shape)
        asked: Mapping[str, object] = (
            {"messages": [{"role": "user", "content": text}], "max_completion_tokens": tokens}
            if shape.chat
            else {"prompt": text, "max_tokens": tokens}
        )
        body = {"model": shape.model, **asked, "stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(body | ({"ignore_eos": True} if shape.ignore_eos else {})).encode()

    @staticmethod
    def _repeat(words: list[str], start: int, count: int) -> list[str]:
        """`count` words from `start` on, round and round."""
        taken: list[str] = []
        while len(taken) < count:
            begin = (start + len(taken)) % POOL
            taken += words[begin : begin + count - len(taken)]
        return taken
