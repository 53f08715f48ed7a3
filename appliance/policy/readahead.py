"""Which of a model's files are read into the page cache while Python still imports, and how much of them.

Only what will be loaded, in the order in which it is: the tensors that an index names, else all of that kind. At most
half of the memory that is available, to the machine and to the unit, for the engine will want memory too, and what does
not fit the cache would be thrown out again before it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from appliance.quantity import UNKNOWN, Maybe

SHARE = 0.5
_KINDS = (".safetensors", ".gguf")  # of the first kind that is there: a model that has both is loaded from tensors


def portions(sizes: Mapping[str, int], indexed: Collection[str], available: Maybe[int]) -> tuple[tuple[str, int], ...]:
    """(name, bytes from its beginning) for the files of a model's directory; nothing where memory is UNKNOWN.

    `indexed` are the files that the model's index names, if it has one.
    """
    left = 0 if available is UNKNOWN else int(available * SHARE)
    taken = []
    for name in _loaded(sizes, indexed):
        portion = min(sizes[name], left)
        if portion <= 0:
            break
        taken.append((name, portion))
        left -= portion
    return tuple(taken)


def _loaded(sizes: Mapping[str, int], indexed: Collection[str]) -> list[str]:
    for kind in _KINDS:
        found = sorted(name for name in sizes if name.endswith(kind))
        if found:
            return [name for name in found if name in indexed] or found
    return []
