"""What GPUs do together in an engine, done alone: ranks add up numbers, or one GPU's memory is copied to another's.

    allreduce.py BACKEND RANK RANKS FILE      BACKEND is nccl (rank N takes the N-th visible GPU) or gloo (processors)
    allreduce.py copy                         from the first visible GPU to the second and back

Ranks meet in FILE. One line of JSON at the end: `{"right": BOOL, "bytes_s": SPEED, "peer": BOOL, "error": TEXT}`; a
rank that waits for ever prints nothing, and is to be killed.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

SIZES = (256, 1 << 20, 16 << 20)  # numbers of four bytes: a small message, what a step sends, what fills a link
ROUNDS = 5
LIMIT_S = 120.0  # above the deadline of whoever started this


def all_reduce(backend: str, rank: int, ranks: int, meeting: str) -> dict[str, object]:
    """Every rank gives its number and must get the sum, in messages of each size."""
    torch, distributed = import_module("torch"), import_module("torch.distributed")
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=LIMIT_S)
    )
    right, speed, wanted = True, 0.0, ranks * (ranks + 1) / 2
    for size in SIZES:
        begun = time.monotonic()
        for _ in range(ROUNDS):
            numbers = torch.full((size,), float(rank + 1), device=device)
            distributed.all_reduce(numbers)
            right = right and bool((numbers == wanted).all().item())  # waits until it is done
        speed = ROUNDS * size * 4 / max(time.monotonic() - begun, 1e-9)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"right": right, "bytes_s": speed}


def copy() -> dict[str, object]:
    """As vLLM's own all-reduce does it: memory to memory, directly where the driver lets it."""
    torch = import_module("torch")
    there = torch.arange(SIZES[-1], dtype=torch.int32)
    begun, right = time.monotonic(), True
    for first, second in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        for _ in range(ROUNDS):
            back = there.to(first).to(second).cpu()
            right = right and bool(torch.equal(back, there))
    speed = 2 * ROUNDS * SIZES[-1] * 4 / max(time.monotonic() - begun, 1e-9)
    return {"right": right, "bytes_s": speed, "peer": bool(torch.cuda.can_device_access_peer(0, 1))}


def main(words: list[str]) -> None:
    """Do it, and tell."""
    try:
        told: dict[str, Any] = (
            copy() if words[0] == "copy" else all_reduce(words[0], int(words[1]), int(words[2]), words[3])
        )
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        told = {"right": False, "error": f"{type(error).__name__}: {lines[0][:300]}"}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
