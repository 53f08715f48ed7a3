"""Fetches one model from a hub into a directory, with the hub's own client.

    fetch_hub.py huggingface|modelscope MODEL DIRECTORY

Prints JSON lines: `{"total": BYTES}` once, then `{"done": true, "revision": ...}` or `{"error": KIND, "message": ...}`
with KIND of `denied missing unreachable full client other`. Endpoint, token, proxies and certificates come in the
client's own environment variables. A run that was cut is gone on with.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

# The same weights in other forms; vLLM reads safetensors. Left out only where safetensors are there.
OTHER_FORMS = ("*.bin", "*.pt", "*.pth", "*.ot", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite",
               "onnx/*", "openvino/*", "coreml/*", "original/*", "metal/*")  # fmt: skip
TRIES = 3


def unwanted(files: Sequence[str]) -> list[str]:
    """The patterns of what need not be fetched."""
    weights = [name for name in files if name.endswith(".safetensors")]
    if not weights:
        return []
    patterns = list(OTHER_FORMS)
    if any(fnmatch.fnmatch(name, "model*.safetensors") for name in weights):
        patterns.append("consolidated*.safetensors")
    return patterns


def huggingface(model: str, directory: str) -> str:
    """Fetch from the Hugging Face hub or its mirror; the revision that was fetched."""
    hub = import_module("huggingface_hub")
    info = hub.HfApi().model_info(model, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
    skipped = unwanted(list(sizes))
    total = sum(size for name, size in sizes.items() if not any(fnmatch.fnmatch(name, p) for p in skipped))
    say(total=total)
    hub.snapshot_download(model, revision=info.sha, local_dir=directory, ignore_patterns=skipped or None)
    return str(info.sha)


def modelscope(model: str, directory: str) -> str:
    """Fetch from ModelScope."""
    import_module("modelscope").snapshot_download(model, local_dir=directory)
    return "master"


def kind(error: BaseException) -> str:
    """The sort of a failure, by the names of the classes and the codes that clients raise."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    classes = {parent.__name__ for one in chain for parent in type(one).__mro__}
    codes = {getattr(getattr(one, "response", None), "status_code", None) for one in chain}
    if any(isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT) for one in chain):
        return "full"
    if "GatedRepoError" in classes or codes & {401, 403}:
        return "denied"
    if classes & {"RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError"} or 404 in codes:
        return "missing"
    if isinstance(error, ModuleNotFoundError):
        return "client"
    names = {"ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError", "ConnectionError",
             "TimeoutError", "TransportError", "LocalEntryNotFoundError", "OfflineModeIsEnabled"}  # fmt: skip
    return "unreachable" if classes & names or any((code or 0) >= 500 for code in codes) else "other"


def say(**fields: Any) -> None:
    """One line for the parent."""
    print(json.dumps(fields), flush=True)


def main(source: str, model: str, directory: str) -> int:
    """Fetch, trying again what a moment may mend."""
    fetch = {"huggingface": huggingface, "modelscope": modelscope}[source]
    for attempt in range(TRIES):
        try:
            say(done=True, revision=fetch(model, directory))
            return 0
        except Exception as error:
            sort = kind(error)
            if sort != "unreachable" or attempt == TRIES - 1:
                say(error=sort, message=str(error).strip().partition("\n")[0][:300] or type(error).__name__)
                return 1
        time.sleep(2.0**attempt)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
