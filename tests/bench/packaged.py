"""Our program under the Python that the package uses: the distribution's own, with the dependencies that it brings.

A Python from elsewhere may be built without the optimisations of the distribution's, and take half as long again.
"""

from __future__ import annotations

import functools
import subprocess

from tests.support.provisions import ROOT, control_trees

PYTHON = "/usr/bin/python3"


@functools.cache
def version() -> str:
    """Of that Python, as 3.11.2. Raises RuntimeError."""
    try:
        said = subprocess.run([PYTHON, "-V"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"{PYTHON}: {error}") from None
    return said.stdout.split()[1]


def command(*arguments: str) -> list[str]:
    """`llm-appliance` with these arguments, as packaging/llm-appliance starts it. Raises RuntimeError."""
    paths = [str(ROOT), f"{control_trees()}/cp{''.join(version().split('.')[:2])}"]
    script = f"import sys; sys.path[:0] = {paths}; from appliance.__main__ import main; sys.exit(main())"
    return [PYTHON, "-IS", "-c", script, *arguments]
