"""How an attempt ended, and with it its call, or the end of one that never had an attempt."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from appliance.errors import ApiError


class End(enum.Enum):
    """How an attempt ended."""

    COMPLETE = "complete"
    LOST = "lost"  # the engine went before a byte of the body came: the call may be sent again
    REFUSED = "refused"  # `error` is for the client, which has heard nothing yet
    BROKEN = "broken"  # the client has been told, or cut off
    LEFT = "left"  # the client went


@dataclass(frozen=True, slots=True)
class Finish:
    """An attempt's end; `error` where there is one."""

    end: End
    error: ApiError | None = None

    @property
    def is_out_of_time(self) -> bool:
        """Whether it took longer than its key may: no fault of the engine, which has worked for it."""
        return self.error is not None and self.error.code == "stream_time_exceeded"


COMPLETE, LOST, LEFT = Finish(End.COMPLETE), Finish(End.LOST), Finish(End.LEFT)
