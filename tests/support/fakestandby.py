"""A process that stands by below a launcher, and from which nothing is forked: vLLM's own starts are the plain ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from appliance.engine.standby import Unfit


class Standby:
    """`sleep`, for as long as the launcher lives. Its pid stands in the file of that name."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._silent = os.pipe()
        with open(path, "w") as file:
            file.write(str(self.pid))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        return self._silent[0]

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: int, pause: Callable[[], None]) -> int:
        raise Unfit("it is a stand-in")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
