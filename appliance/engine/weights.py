"""A look at the model's files before vLLM takes half a minute to say that they are not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import MappingProxyType

from appliance.wire.safetensors import INDEX_NAME, PREFIX, file_size, header_length
from appliance.wire.vllmcauses import Cause

# Files that vLLM reads as JSON and does not name when they are none, and the flags with which it may not need them.
_JSON = {
    "tokenizer.json": ("tokenizer", "tokenizer_mode", "skip_tokenizer_init"),
    "tokenizer_config.json": ("tokenizer", "tokenizer_mode", "skip_tokenizer_init"),
    INDEX_NAME: ("load_format",),
}
_READ_WHOLE = 1 << 20  # of a longer one only the ends are looked at: a start does not wait for that


def fault_of(model: str, directory: str, flags: Mapping[str, object] = MappingProxyType({})) -> Cause | None:
    """Why this user cannot serve the model in `directory` with these flags; None when nothing speaks against it."""
    if not os.path.isdir(directory):
        if os.path.exists(directory):
            return Cause("model-not-found", f"{directory} is not a directory", "name the model's directory", -1)
        if _hidden(directory):
            return Cause("model-unreadable", f"the engine's user may not enter {_hidden(directory)}",
                         "make the directory readable, or move the model", -1)  # fmt: skip
        if model.startswith("/"):
            return Cause("model-not-found", f"there is no directory {directory}", "correct model in [[engine]]", -1)
        pull = f"llm-appliance models pull {model}"
        return Cause("model-not-found", f"{model} is not on this machine", f"{pull}, or wait for llm-runtime", -1)
    count = 0
    for parent, below, files in os.walk(directory, onerror=None):
        # What is hidden belongs to others: the lock of an editor is a link that leads nowhere.
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            if name.startswith("."):
                continue
            count += 1
            path = os.path.join(parent, name)
            if not os.path.exists(path):
                return Cause("model-unreadable", f"{path} leads nowhere", "fetch the model again", -1)
            if not os.access(path, os.R_OK):
                return Cause("model-unreadable", f"the engine's user may not read {path}",
                             f"chmod -R a+rX {directory}", -1)  # fmt: skip
            if name.endswith(".safetensors") and (broken := _broken(path)):
                return Cause("model-unreadable", f"{path} {broken}", "fetch the file again", -1)
            if parent == directory and name in _JSON and flags.keys().isdisjoint(_JSON[name]) and _torn(path):
                return Cause("model-unreadable", f"{path} is not JSON", "fetch the file again", -1)
    if not os.access(directory, os.R_OK | os.X_OK):
        return Cause(
            "model-unreadable", f"the engine's user may not read {directory}", f"chmod -R a+rX {directory}", -1
        )
    if count == 0:
        remedy = f"llm-appliance models pull {model}" if not model.startswith("/") else "put the model's files there"
        return Cause("model-not-found", f"{directory} is empty", remedy, -1)
    return None


def _broken(path: str) -> str:
    """What is certainly wrong with a file of weights; empty where nothing is. vLLM names neither file nor remedy.

    A download that was cut off is shorter than its header says; a pointer of Git LFS has no header.
    """
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            length = header_length(file.read(PREFIX))
            header = file.read(length)
    except OSError as error:
        return f"cannot be read: {(error.strerror or 'unknown error').lower()}"
    except ValueError:
        return f"is no whole safetensors file: {size} bytes"
    if len(header) < length:
        return f"is no whole safetensors file: {size} bytes"
    try:
        needed = file_size(header)
    except ValueError:
        return "has a header that cannot be read"
    return f"was cut off: {size} bytes of {needed}" if size < needed else ""


def _torn(path: str) -> bool:
    """Whether a file is certainly no JSON object: a download that was cut off, a pointer of Git LFS."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size <= _READ_WHOLE:
                return not isinstance(json.load(file), dict)
            begin = file.read(64)
            file.seek(-64, os.SEEK_END)
            return not (begin.lstrip().startswith(b"{") and file.read().rstrip().endswith(b"}"))
    except ValueError:
        return True
    except (OSError, RecursionError):
        return False


def _hidden(path: str) -> str:
    """The innermost existing parent that this user may not enter; empty when there is none."""
    parent = os.path.dirname(path.rstrip("/"))
    while parent and parent != "/":
        if os.path.isdir(parent):
            return "" if os.access(parent, os.X_OK) else parent
        parent = os.path.dirname(parent)
    return ""
