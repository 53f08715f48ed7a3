"""Does this environment hold a vLLM that starts? `selftest.py cuda|cpu` prints what it found; exit 0 means yes.

Nothing is asked of a GPU: the environment may be built while the driver is not loaded yet.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

CUDA_KERNELS = ("vllm._C", "vllm._C_stable_libtorch")  # of earlier and of present versions


def main(device: str) -> int:
    """Import what an engine imports first, then run `vllm --version` in this process."""
    torch = import_module("torch")
    import_module("vllm")
    found = version("vllm")
    if device == "cpu" and "cpu" not in found:
        print(f"vLLM {found} would not take this machine for a CPU machine")
        return 1
    fault = _kernels_fault(device)
    if fault:
        print(fault)
        return 1
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


def _kernels_fault(device: str) -> str:
    """Why vLLM's compiled part cannot be loaded, with the libraries that it needs from the host; empty when it can."""
    if device == "cpu":
        # There is one for each generation of processors; another than the one that vLLM chooses may end this process.
        import_module("vllm.platforms").current_platform.import_kernels()
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            loaded = any("/vllm/_C" in line for line in maps)
        return "" if loaded else "vLLM's compiled part cannot be loaded"
    kernels = next((name for name in CUDA_KERNELS if find_spec(name)), None)
    if kernels is None:
        return "vLLM has no compiled part"
    try:
        import_module(kernels)
    except ImportError as error:
        if "libcuda.so" not in str(error):
            raise
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
