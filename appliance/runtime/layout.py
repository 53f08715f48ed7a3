"""Where the builder keeps things. Every path comes from two roots, so that a test can have its own."""

from __future__ import annotations

from dataclasses import dataclass

from appliance import names
from appliance.config.model import Config


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below the state root and the run root."""

    state: str = names.STATE
    run: str = names.RUN

    @property
    def runtimes(self) -> str:
        """The environments, and the builder's own directories beside them: hard links need one file system."""
        return f"{self.state}/runtimes"

    @property
    def wheels(self) -> str:
        """Files being downloaded (`NAME.part`) and downloaded; emptied when an environment is complete."""
        return f"{self.runtimes}/wheels"

    @property
    def bootstrap(self) -> str:
        """The small environment that holds uv."""
        return f"{self.runtimes}/bootstrap"

    @property
    def scratch(self) -> str:
        """HOME, caches and temporary files of the children; emptied at each start."""
        return f"{self.runtimes}/.scratch"

    @property
    def certificates(self) -> str:
        """The system's certificates and those of `[network] ca_file` in one file."""
        return f"{self.scratch}/certificates.pem"

    @property
    def state_file(self) -> str:
        """What other processes read."""
        return f"{self.run}{names.RUNTIME_STATE[len(names.RUN) :]}"

    def models(self, config: Config) -> str:
        """The models' directory: as configured, and below the state root where the default was left."""
        return f"{self.state}/models" if config.models.directory == names.MODELS else config.models.directory
