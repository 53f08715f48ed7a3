"""Who calls: from a key to a principal, by the keys file as it was last good."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from appliance import clock
from appliance.config.model import UNLIMITED, Auth, KeyLimits
from appliance.errors import ApiError
from appliance.host import keystore


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call stands for; `models` empty: all."""

    key_id: str
    name: str
    models: tuple[str, ...] = ()
    limits: KeyLimits = UNLIMITED

    def may_use(self, model: str) -> bool:
        """Whether the key's allowlist has the model."""
        return not self.models or model in self.models


ANONYMOUS = Principal("anonymous", "anonymous")


class Gatekeeper:
    """Holds the keys in force. A file that went bad keeps the old ones, and is reported once for each change."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._settings = Auth()
        self._stamp: tuple[int, ...] | None = ()
        self.keys = keystore.Keys()
        self._principals: dict[str, Principal] = {}  # by the key's id
        self.problem = ""

    def configure(self, settings: Auth) -> None:
        """Take the settings and read the file they name, changed or not."""
        self._settings = settings
        self._stamp = ()
        self.refresh()

    def refresh(self) -> None:
        """Read the file again when it changed; one stat, on the loop, is cheaper than a watch."""
        path = self._settings.keys_file
        try:
            status = os.stat(path)
            # With the time of the inode: a mode put right is a change too, and so is a copy with its time kept.
            stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.keys = keystore.read(path)
            self._principals = {key.id: Principal(key.id, key.name, key.models, key.limits) for key in self.keys.keys}
            self.problem = ""
        except keystore.KeysInvalid as error:
            self.problem = error.message + (f" ({error.hint})" if error.hint else "")
            self._report(f"the keys stay as they were: {self.problem}")

    @property
    def has_keys(self) -> bool:
        """Whether anybody could be let in."""
        now = clock.wall()
        return any(key.state(now) == "good" for key in self.keys.keys)

    def limits(self, key_id: str) -> KeyLimits:
        """The limits of a key by its id; none for one that is gone."""
        return next((key.limits for key in self.keys.keys if key.id == key_id), UNLIMITED)

    def principal(self, secret: str) -> Principal:
        """Whose key that is; empty: none was sent. Raises ApiError invalid_api_key."""
        if not self._settings.required:
            return ANONYMOUS
        if not secret:
            raise ApiError(
                "invalid_api_key", self._hint("no API key was sent: use the header Authorization: Bearer KEY")
            )
        now = clock.wall()
        key = self.keys.find(secret, now)
        if key is None:  # made a moment ago, perhaps: a key works as soon as it was printed
            self.refresh()
            key = self.keys.find(secret, now)
        if key is None:
            raise ApiError("invalid_api_key", self._hint("this API key is not known"))
        state = key.state(now)
        if state != "good":
            raise ApiError("invalid_api_key", f"this API key is {state}")
        return self._principals[key.id]

    def _hint(self, text: str) -> str:
        if self.has_keys:
            return text
        return f"{text}; no key exists yet, the operator makes one with: sudo llm-appliance keys create NAME"
