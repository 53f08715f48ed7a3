"""Widen SmolLM2 by a group of heads that adds nothing, so that its heads can be split over two ranks; the same answers.

python widen.py MODEL TARGET
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main(source: Path, target: Path) -> None:
    """Write a copy of the model with one more key-value head, and the query heads that share it, all of them zero."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    more = heads // groups
    config |= {"num_attention_heads": heads + more, "num_key_value_heads": groups + 1, "head_dim": size}
    (target / "config.json").write_text(json.dumps(config, indent=1))
    rows = {"q_proj": more * size, "k_proj": size, "v_proj": size}
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        kind = name.split(".")[-2]
        if kind in rows:
            tensors[name] = torch.cat([tensor, tensor.new_zeros(rows[kind], tensor.shape[1])]).contiguous()
        elif kind == "o_proj":
            tensors[name] = torch.cat([tensor, tensor.new_zeros(tensor.shape[0], more * size)], dim=1).contiguous()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
