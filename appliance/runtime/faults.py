"""How a build ends without a runtime: what can get better by itself, what cannot, and being told to stop."""

from __future__ import annotations

from appliance import names
from appliance.errors import Failed


class Impossible(Failed):
    """It will not get better until the configuration or the host changes: the service manager must not try again."""

    exit_status = names.LAUNCHER_CONFIG


class Busy(Failed):
    """Another builder is at work; what it says of itself must stay."""


class Stopped(BaseException):
    """SIGTERM or SIGINT came. Not an Exception: nothing on the way up may take it for a failure and go on."""
