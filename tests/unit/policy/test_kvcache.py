"""The layout of the KV cache: how kinds of layers share a pool of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.architecture import Architecture, Keeps, Layer
from appliance.policy.kvcache import Cache, Setting, layout

FULL = Layer(Keeps.FULL, 8, 128, 128)
WINDOW = Layer(Keeps.SLIDING, 8, 128, 128, window=1024)
CHUNK = Layer(Keeps.CHUNKED, 8, 128, 128, window=8192)
LATENT = Layer(Keeps.LATENT, latent=576)
STATE = Layer(Keeps.STATE, conv_width=10240, conv_steps=3, state_bytes=48 * 128 * 128 * 4)
NOTHING = Layer(Keeps.NOTHING)


def cache(*layers: Layer, **setting: int | bool) -> Cache:
    made = layout(Architecture(family="x", layers=layers), Setting(**setting))  # type: ignore[arg-type]
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("layers", "setting", "per_token"),
    [
        ((FULL,) * 4, {}, 4 * 8 * 256 * 2),
        ((FULL,) * 4, {"kv_bytes": 1}, 4 * 8 * 256),
        ((FULL,) * 4, {"tp": 4}, 4 * 2 * 256 * 2),
        ((FULL,) * 4, {"tp": 16}, 4 * 1 * 256 * 2),  # heads are replicated, not split further
        ((FULL,) * 4, {"pp": 2}, 2 * 8 * 256 * 2),
        ((FULL,) * 5, {"pp": 2}, 3 * 8 * 256 * 2),  # the fullest stage
        ((LATENT,) * 4, {}, 4 * 576 * 2),
        ((LATENT,) * 4, {"tp": 8}, 4 * 576 * 2),  # a latent is not split
        ((Layer(Keeps.LATENT, latent=576, index_bytes=132),) * 4, {"kv_bytes": 1}, 4 * (656 + 132)),
        ((FULL, NOTHING, NOTHING), {}, 8 * 256 * 2),
        ((FULL,) * 4, {"speculative": 1}, 5 * 8 * 256 * 2),  # a draft head has a layer of its own
    ],
)
def test_bytes_of_a_token(layers: tuple[Layer, ...], setting: dict[str, int], per_token: int) -> None:
    assert cache(*layers, **setting).per_token == per_token


def test_nothing_kept_is_no_cache() -> None:
    assert layout(Architecture(family="x", layers=(NOTHING,) * 3), Setting()) is None


def test_a_window_takes_no_more_than_itself_and_what_is_in_flight() -> None:
    made = cache(*(FULL, *(WINDOW,) * 5) * 10, in_flight=2048)
    assert (len(made.groups), made.block_bytes) == (2, 10 * 16 * 8 * 256 * 2)
    bounded = 5 * (-(-(1023 + 2048) // 16) + 1)
    assert made.request_blocks(100_000) == 100_000 // 16 + bounded
    assert made.request_blocks(160) == 10 + 5 * 11
    chunked = cache(*(FULL, *(CHUNK,) * 3) * 12, in_flight=2048)
    assert chunked.request_blocks(1_000_000) == 62_500 + 3 * (8192 + 2048) // 16


def test_uneven_kinds_are_padded() -> None:
    assert cache(*(FULL,) * 13, *(WINDOW,) * 12).block_bytes == 13 * 16 * 8 * 256 * 2  # one group each, 13 wide
    assert [group.tables for group in cache(*(FULL,) * 10, *(WINDOW,) * 52).groups] == [1, 6]


def test_states_make_blocks_large_and_cost_each_request() -> None:
    full = Layer(Keeps.FULL, 4, 256, 256)
    made = cache(*(STATE, STATE, STATE, full) * 16, kv_bytes=1)
    page = 1568 * 4 * 512
    assert (made.block_bytes, made.fixed_states) == (16 * page, 6)  # vLLM: "Setting attention block size to 1568"
    assert made.request_blocks(1) == 1 + 6
    alone = cache(*(STATE, STATE, STATE, full) * 16, kv_bytes=1, prefix_caching=False)
    assert alone.fixed_states == 3


@given(
    kinds=st.lists(st.sampled_from([FULL, WINDOW, CHUNK, LATENT, STATE, NOTHING]), min_size=1, max_size=40),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    available=st.integers(0, 1 << 36),
    ceiling=st.integers(1, 1 << 20),
)
def test_the_longest_request_fits_and_one_token_more_does_not(
    kinds: list[Layer], tp: int, pp: int, available: int, ceiling: int
) -> None:
    made = layout(Architecture(family="x", layers=tuple(kinds)), Setting(tp=tp, pp=pp))
    if made is None:
        assert all(layer is NOTHING for layer in kinds)
        return
    longest = made.longest(available, ceiling)
    assert 0 <= longest <= ceiling
    if longest:
        assert made.request_bytes(longest) <= available
        assert made.concurrency(available, longest) >= 1
    if longest < ceiling:
        assert made.request_bytes(longest + 1) > available


def shaped(every: int, count: int, full: Layer, other: Layer) -> tuple[Layer, ...]:
    """`count` layers, each `every`-th of them full attention."""
    return tuple(full if (n + 1) % every == 0 else other for n in range(count))


WIDE = Layer(Keeps.FULL, 16, 128, 128)
GEMMA3 = shaped(6, 62, WIDE, Layer(Keeps.SLIDING, 16, 128, 128, window=1024))
GEMMA4 = shaped(6, 60, Layer(Keeps.FULL, 4, 512, 512), Layer(Keeps.SLIDING, 16, 256, 256, window=1024))
GPT_OSS = shaped(2, 36, Layer(Keeps.FULL, 8, 64, 64), Layer(Keeps.SLIDING, 8, 64, 64, window=128))
LLAMA4 = shaped(4, 48, FULL, CHUNK)
QWEN35 = shaped(4, 64, Layer(Keeps.FULL, 4, 256, 256), STATE)
MISTRAL = (Layer(Keeps.SLIDING, 8, 128, 128, window=4096),) * 32


@pytest.mark.parametrize(
    ("layers", "length", "size"),
    [
        (GEMMA3, 8192, 3195535360),
        (GEMMA3, 131072, 13261864960),
        (GEMMA4, 8192, 4878499840),
        (GEMMA4, 131072, 14944829440),
        (GPT_OSS, 8192, 458293248),
        (GPT_OSS, 131072, 4988141568),
        (LLAMA4, 8192, 1610612736),
        (LLAMA4, 131072, 8254390272),
        (QWEN35, 8192, 873463808),
        (QWEN35, 131072, 8940158976),
        (MISTRAL, 131072, 1075838976),
        ((LATENT,) * 61, 131072, 9210691584),
    ],
)
def test_as_vllm_lays_it_out(layers: tuple[Layer, ...], length: int, size: int) -> None:
    """Bytes of one request by vLLM 0.32's own functions, with 4096 tokens in flight and prefix caching."""
    assert cache(*layers, in_flight=4096).request_bytes(length) == size
