"""Prompts of a wanted length, different where caches look and equal where they should."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from appliance.cli.benchprompts import POOL, Prompts, Shape

SHAPE = Shape("m", False, 100, 300)


@pytest.mark.parametrize("words", [1, 5, 24, 25, 300, POOL * 2 + 3])
def test_a_prompt_has_its_words(words: int) -> None:
    assert len(Prompts(1).text(replace(SHAPE, words=words)).split()) == words


def test_no_two_prompts_begin_alike() -> None:
    prompts = Prompts(1)
    assert len({tuple(prompts.text(SHAPE).split()[:16]) for _ in range(500)}) == 500


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    prompts = Prompts(1)
    texts = [prompts.text(replace(SHAPE, shared_words=200)).split() for _ in range(50)]
    assert len({tuple(words[:200]) for words in texts}) == 1
    assert len({tuple(words[200:216]) for words in texts}) == 50
    assert {len(words) for words in texts} == {300}
    whole = replace(SHAPE, shared_words=300)
    assert prompts.text(whole) == prompts.text(whole)


def test_a_seed_makes_the_same_prompts_again() -> None:
    one, again, other = Prompts(1), Prompts(1), Prompts(2)
    texts = [one.text(SHAPE) for _ in range(3)]
    assert [again.text(SHAPE) for _ in range(3)] == texts
    assert other.text(SHAPE) != texts[0]


@pytest.mark.parametrize(("each", "start"), [(1.0, 0), (1.25, 12), (0.9, 40), (3.0, 7)])
def test_the_length_is_fitted_by_what_the_engine_counts(each: float, start: int) -> None:
    """A template takes `start` tokens, a word makes `each`."""
    shape = replace(SHAPE, words=512)
    for _ in range(4):
        shape = shape.fitted(512, round(start + each * shape.words))
    assert abs(start + each * shape.words - 512) <= max(each, 5)


def test_an_engine_that_counts_nothing_gets_no_endless_prompt() -> None:
    shape = replace(SHAPE, words=512)
    for _ in range(4):
        shape = shape.fitted(512, 7)
    assert shape.words == 4 * 512


def test_bodies_are_what_the_routes_take() -> None:
    completion = json.loads(Prompts(1).body(SHAPE))
    assert (completion["max_tokens"], completion["ignore_eos"], completion["stream"]) == (100, True, True)
    assert completion["stream_options"] == {"include_usage": True}
    chat = json.loads(Prompts(1).body(replace(SHAPE, chat=True, ignore_eos=False), output_tokens=8))
    assert chat["max_completion_tokens"] == 8 and "ignore_eos" not in chat
    assert chat["messages"] == [{"role": "user", "content": completion["prompt"]}]
