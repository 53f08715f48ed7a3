"""The exceptions that people and clients may see: who is at fault, a stable code, a sentence and a remedy.

    ApplianceError            anything an operator is told about; ends a command with `exit_status`
      ConfigInvalid           the configuration: every problem at once (exit 2)
      UsageError              wrong arguments (exit 2)
      Unreachable             what the command needs does not answer (exit 3)
      Failed                  it was tried and found wrong (exit 1)
    ApiError                  what a caller of the HTTP API is told; `API_CODES` holds status and type of each code

Foreign exceptions are translated in the adapter that met them; nothing above it sees an OSError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXIT_OK, EXIT_FOUND, EXIT_USAGE, EXIT_UNREACHABLE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration, with its place.

    `file` and `line` are None where the value comes from a default or a law across files. `severity` is "error" or
    "warning"; only errors make a configuration invalid.
    """

    key: str
    message: str
    remedy: str = ""
    file: str | None = None
    line: int | None = None
    severity: str = "error"

    def __str__(self) -> str:
        place = "" if self.file is None else f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        tail = f" ({self.remedy})" if self.remedy else ""
        return f"{place}{self.key}: {self.message}{tail}" if self.key else f"{place}{self.message}{tail}"


class ApplianceError(Exception):
    """An error for an operator: a sentence, a hint what to do, and the exit status of a command that ends with it."""

    exit_status = EXIT_FOUND

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Failed(ApplianceError):
    """Something was tried and found wrong."""


class UsageError(ApplianceError):
    """The command was called wrongly."""

    exit_status = EXIT_USAGE


class Unreachable(ApplianceError):
    """What the command needs (systemd, the gateway, a file) does not answer."""

    exit_status = EXIT_UNREACHABLE


class ConfigInvalid(ApplianceError):
    """The configuration has errors; all of them are in `problems`, warnings included."""

    exit_status = EXIT_USAGE

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [p for p in self.problems if p.severity == "error"]
        super().__init__(
            f"the configuration has {len(errors)} error{'s' if len(errors) != 1 else ''}: {errors[0]}"
            if errors
            else "the configuration is invalid"
        )


# code -> (HTTP status, OpenAI's error type). The contract's table; nothing else may be sent to a client.
API_CODES: dict[str, tuple[int, str]] = {
    "invalid_json": (400, "invalid_request_error"),
    "invalid_request": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "model_not_allowed": (403, "permission_error"),
    "model_not_found": (404, "not_found_error"),
    "not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_too_large": (413, "invalid_request_error"),
    "request_quarantined": (422, "invalid_request_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "quota_exceeded": (429, "rate_limit_error"),
    "concurrency_limit": (429, "rate_limit_error"),
    "queue_full": (429, "rate_limit_error"),
    "queue_timeout": (429, "rate_limit_error"),
    "engine_starting": (503, "service_unavailable"),
    "engine_restarting": (503, "service_unavailable"),
    "engine_held": (503, "service_unavailable"),
    "gateway_overloaded": (503, "service_unavailable"),
    "gateway_draining": (503, "service_unavailable"),
    "config_invalid": (503, "service_unavailable"),
    "first_token_timeout": (504, "timeout_error"),
    "stream_time_exceeded": (504, "timeout_error"),
    "engine_died": (502, "api_error"),
    "stream_stalled": (504, "api_error"),
    "engine_error": (502, "api_error"),
}


class ApiError(Exception):
    """A refusal or failure that a caller of the HTTP API is told, in the shape of the API it called.

    `retry_after` is in seconds; None sends no Retry-After. `final` tells the client that a retry cannot help.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.type = API_CODES[code]
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.final = final

    def settled(self) -> ApiError:
        """The error without the frames that it came through: a frame that keeps it would keep a request's body, too."""
        self.__traceback__ = self.__context__ = None
        return self
