"""How a running request takes memory of the KV cache, as vLLM 0.32 lays it out, for one GPU.

All layers share one pool of blocks. Layers that keep the same kind of thing form groups of equal size, each with a
block table of its own; a block of the pool holds one page for every layer of a group. So a model of one kind has one
group and memory is linear in the tokens, while a hybrid's request takes, for each group, as many blocks as its kind
needs: all tokens, the last window and what is in flight, or a fixed number of states.

    bytes of a block     layers in a group x page
    page                 tokens in a block x bytes a token; with states at least a state, so blocks grow to hundreds
                         of tokens
    tokens that fit      blocks / blocks of a request of the longest length x that length: what vLLM logs as
                         "GPU KV cache size"

Under tensor parallelism heads are split, at least one to a GPU (so they are replicated when there are more GPUs than
heads), a latent is not split, states are. Under pipeline parallelism a stage holds its own layers only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from appliance.architecture import Architecture, Keeps, Layer

BLOCK = 16  # tokens in a block where nothing demands more; vLLM's default on CUDA
LATENT_ALIGNMENT = 128  # of blocks in hybrids of MLA and states: the decode kernels of MLA demand it
SPARSE_LATENT_FP8 = 656  # bytes a token of DeepSeek's own fp8 form (512 values, 4 scales, 64 rotary values of 16 bits)

KV_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_ds_mla": 1, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What decides the layout beside the model."""

    tp: int = 1
    pp: int = 1
    kv_bytes: int = 2  # of one value
    in_flight: int = 2048  # tokens scheduled and not settled: a window keeps their blocks too
    prefix_caching: bool = True
    speculative: int = 0  # draft tokens of a built-in draft head (MTP)


@dataclass(frozen=True, slots=True)
class Group:
    """Block tables of one kind."""

    keeps: Keeps
    tables: int  # how many of them
    tokens: int  # in a block; 0 for states
    window: int = 0
    states: int = 0  # blocks of a request, for states

    def blocks(self, length: int, in_flight: int) -> int:
        """Blocks of the pool that a request of `length` tokens needs for all tables of this kind."""
        if self.keeps is Keeps.STATE:
            return self.tables * self.states
        if self.keeps is Keeps.SLIDING:  # one more: a window need not begin where a block does
            return self.tables * (_up(min(self.window - 1 + in_flight, length), self.tokens) + 1)
        if self.keeps is Keeps.CHUNKED:
            return self.tables * _up(min(self.window + in_flight, length), self.tokens)
        return self.tables * _up(length, self.tokens)


@dataclass(frozen=True, slots=True)
class Cache:
    """The layout on one GPU."""

    block_bytes: int
    groups: tuple[Group, ...]
    in_flight: int

    def blocks(self, available: int) -> int:
        """Blocks in a pool of so many bytes."""
        return max(available, 0) // self.block_bytes

    def request_blocks(self, length: int) -> int:
        """Blocks of one request of `length` tokens."""
        return sum(group.blocks(length, self.in_flight) for group in self.groups)

    def request_bytes(self, length: int) -> int:
        """Bytes of the pool that one request of `length` tokens takes."""
        return self.request_blocks(length) * self.block_bytes

    def concurrency(self, available: int, length: int) -> float:
        """Requests of `length` tokens that run at once."""
        return self.blocks(available) / self.request_blocks(length)

    def tokens(self, available: int, length: int) -> int:
        """vLLM's "GPU KV cache size" where `length` is max_model_len."""
        return int(self.concurrency(available, length) * length)

    def longest(self, available: int, ceiling: int) -> int:
        """The longest request that fits alone, at most `ceiling` tokens; 0 when none does."""
        blocks = self.blocks(available)
        low, high = 0, ceiling
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_blocks(middle) <= blocks else (low, middle - 1)
        return low

    @property
    def per_token(self) -> int:
        """Bytes that one more token of a long request takes."""
        growing = [group for group in self.groups if group.keeps in (Keeps.FULL, Keeps.LATENT)]
        return sum(group.tables * self.block_bytes // group.tokens for group in growing)

    @property
    def fixed_states(self) -> int:
        """Blocks that a request takes whatever its length."""
        return sum(group.tables * group.states for group in self.groups)


def layout(model: Architecture, setting: Setting) -> Cache | None:
    """The layout of a model's cache; None when it keeps nothing (or its layers are not known)."""
    layers = [layer for layer in model.layers if layer.keeps is not Keeps.NOTHING]
    if not layers:
        return None
    if setting.speculative:
        layers.append(next((layer for layer in layers if layer.keeps in (Keeps.FULL, Keeps.LATENT)), layers[-1]))
    counts = Counter((layer.keeps, layer.window) for layer in layers)
    if all(keeps in (Keeps.FULL, Keeps.LATENT) for keeps, _ in counts) or len(counts) == 1:
        return _uniform(layers, setting)
    return _hybrid(layers, setting)


def _uniform(layers: list[Layer], setting: Setting) -> Cache:
    """One kind: one group, and a page of each layer's own size in every block."""
    first = layers[0]
    if first.keeps is Keeps.STATE:
        block = sum(state_bytes(layer, setting) for layer in layers)
        group = Group(Keeps.STATE, 1, 0, states=_states(setting))
    else:
        block = sum(token_bytes(layer, setting) for layer in layers) * BLOCK
        group = Group(first.keeps, 1, BLOCK, window=first.window)
    share = _up(len(layers), setting.pp)  # layers of the fullest stage
    return Cache(max(block * share // len(layers), 1), (group,), setting.in_flight)


def _hybrid(layers: list[Layer], setting: Setting) -> Cache:
    """Several kinds: groups of equal size, one page size for all."""
    attention = [layer for layer in layers if layer.keeps is not Keeps.STATE]
    widest = max(token_bytes(layer, setting) for layer in attention)
    tokens = BLOCK
    states = [state_bytes(layer, setting) for layer in layers if layer.keeps is Keeps.STATE]
    if states:
        step = LATENT_ALIGNMENT if any(layer.keeps is Keeps.LATENT for layer in attention) else BLOCK
        tokens = step * _up(max(states), step * widest)
    page = tokens * widest
    buckets: dict[tuple[Keeps, int, int], int] = {}
    for layer in layers:
        kind = (layer.keeps, layer.window, 0 if layer.keeps is Keeps.STATE else token_bytes(layer, setting))
        buckets[kind] = buckets.get(kind, 0) + 1
    fewest, most = min(buckets.values()), max(buckets.values())
    size = most if most < 1.5 * fewest else fewest  # vLLM's own threshold against padding
    groups = []
    for (keeps, window, each), count in buckets.items():
        # Layers with smaller pages hold more tokens a block where that fills the page, else the page is padded.
        held = 0 if keeps is Keeps.STATE else page // each if page % each == 0 else tokens
        groups.append(Group(keeps, _up(count, size), held, window, _states(setting) if keeps is Keeps.STATE else 0))
    return Cache(_up(size, setting.pp) * page, tuple(groups), setting.in_flight)


def token_bytes(layer: Layer, setting: Setting) -> int:
    """Bytes of one token in one layer on one GPU."""
    if layer.keeps is Keeps.LATENT:
        if layer.index_bytes and setting.kv_bytes == 1:
            return SPARSE_LATENT_FP8 + layer.index_bytes
        return layer.latent * setting.kv_bytes + layer.index_bytes
    heads = max(_up(layer.kv_heads, setting.tp), 1)
    return heads * (layer.head_dim + layer.value_dim) * setting.kv_bytes


def state_bytes(layer: Layer, setting: Setting) -> int:
    """Bytes of one request's state in one layer on one GPU; drafts lengthen what the convolution remembers."""
    convolution = layer.conv_width // setting.tp * (layer.conv_steps + setting.speculative) * 2
    return convolution + layer.state_bytes // setting.tp


def _states(setting: Setting) -> int:
    """States of a request: the running one, one kept for the prefix cache, one for each draft token."""
    return (2 if setting.prefix_caching else 1) + setting.speculative


def _up(count: int, step: int) -> int:
    return -(-count // step)
