"""Does this environment hold a vLLM that starts? `selftest.py cuda|cpu` prints what it found; exit 0 means yes.

Nothing is asked of a GPU: the environment may be built while the driver is not loaded yet.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

COMPILED = ("vllm._C", "vllm._C_stable_libtorch")  # the CPU's build, the CUDA build


def main(device: str) -> int:
    """Import what an engine imports first, then run `vllm --version` in this process."""
    torch = import_module("torch")
    import_module("vllm")
    found = version("vllm")
    if device == "cpu" and "cpu" not in found:
        print(f"vLLM {found} would not take this machine for a CPU machine")
        return 1
    compiled = next((name for name in COMPILED if find_spec(name)), None)
    if compiled is None:
        print("vLLM has no compiled part")
        return 1
    try:
        import_module(compiled)  # with the libraries that it needs from the host
    except ImportError as error:
        if device != "cuda" or "libcuda.so" not in str(error):
            raise
    print(f"torch {torch.__version__}, vLLM {found}")
    if device == "cuda" and not torch.cuda.is_available():
        # vLLM's own command line does not start without one.
        print("no GPU can be seen from here: engines cannot start before one is")
        return 0
    sys.argv = ["vllm", "--version"]
    try:
        import_module("vllm.entrypoints.cli.main").main()
    except SystemExit as end:
        return 0 if end.code in (None, 0) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
