"""`llm-appliance VERB`: the processes by their names, everything else through the command line.

A process is imported only when it is asked for: the launcher and the generator start without the gateway.
"""

from __future__ import annotations

import sys
from importlib import import_module

# verb -> module with `main(arguments: list[str]) -> int`
PROCESSES = {
    "gateway": "appliance.gateway.main",
    "supervisor": "appliance.supervisor.main",
    "engine": "appliance.engine.main",
    "runtime-build": "appliance.runtime.main",
    "generator": "appliance.generator.main",
    "unitctl": "appliance.supervisor.unitctl",
    "nvml-probe": "appliance.supervisor.nvmlprobe",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one verb and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    module = PROCESSES.get(words[0] if words else "")
    if module is not None:
        status: int = import_module(module).main(words[1:])
        return status
    return int(import_module("appliance.cli.main").main(words))


if __name__ == "__main__":
    sys.exit(main())
