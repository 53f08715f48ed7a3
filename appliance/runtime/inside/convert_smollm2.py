"""The built-in chat model's file (GGUF, four bits) becomes a directory that vLLM serves, in bfloat16.

    convert_smollm2.py FILE.gguf DIRECTORY      the directory exists and is empty

The same file gives the same weights, byte for byte. What the converter of the library leaves undone is done here:
weights are unpacked (by default they stay packed and cannot be saved), the tokenizer gets back the rule that splits
numbers into digits, and both end marks stop the model. No path of this machine stays in the result.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

END_OF_TURN, END_OF_TEXT, VOCABULARY = 2, 0, 49152
CONTEXT = 8192  # what the model was trained for; the file does not say


def main(source: Path, target: Path) -> None:
    """Convert; raises whatever goes wrong, the last line of which the parent shows."""
    torch, transformers = import_module("torch"), import_module("transformers")
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    found = (tokenizer.eos_token_id, len(tokenizer), bool(tokenizer.chat_template))
    if found != (END_OF_TURN, VOCABULARY, True):
        raise ValueError(f"not the tokenizer that was expected: {found}")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **place, dtype=torch.bfloat16, quantization_config=transformers.GgufConfig(dequantize=True)
    )
    model.config._name_or_path = ""
    settings = model.generation_config
    settings.eos_token_id = [END_OF_TURN, END_OF_TEXT]
    # What a client gets that names no temperature; at vLLM's own 1.0 so small a model talks nonsense.
    settings.do_sample, settings.temperature, settings.top_p = True, 0.2, 0.9
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    edit(target / "tokenizer.json", split_digits)
    edit(target / "tokenizer_config.json", forget_origin)


def edit(path: Path, change: Any) -> None:
    """Apply `change` to the JSON object in a file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1))


def split_digits(tokenizer: dict[str, Any]) -> None:
    """Put the digit splitter before the other splitters, as the model was trained with it."""
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}


def forget_origin(config: dict[str, Any]) -> None:
    """Leave out where the file lay."""
    config["model_max_length"] = CONTEXT
    for key in ("is_local", "local_files_only", "name_or_path", "gguf_file"):
        config.pop(key, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
