"""Where live state and kept state lie: the packaged paths, or other directories for development and tests.

LLM_APPLIANCE_RUN and LLM_APPLIANCE_STATE move what is below `/run/llm-appliance` and `/var/lib/llm-appliance`, for all
processes and for the command line alike. No packaged unit sets them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from appliance import names

RUN_VARIABLE = "LLM_APPLIANCE_RUN"
STATE_VARIABLE = "LLM_APPLIANCE_STATE"


@dataclass(frozen=True, slots=True)
class Places:
    """The two roots and the paths below them that processes share."""

    run: str = names.RUN
    state: str = names.STATE

    def under_run(self, path: str) -> str:
        """A path below RUN, moved; any other as it is."""
        return _moved(path, names.RUN, self.run)

    def under_state(self, path: str) -> str:
        """A path below STATE, moved; any other as it is."""
        return _moved(path, names.STATE, self.state)


def from_environment(environment: Mapping[str, str] | None = None) -> Places:
    """The places that the environment asks for, else the packaged ones."""
    given = os.environ if environment is None else environment
    return Places(given.get(RUN_VARIABLE) or names.RUN, given.get(STATE_VARIABLE) or names.STATE)


def _moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path
