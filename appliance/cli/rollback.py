"""Settings that were applied and did not work are set aside: `rejected.json` beside the file names them.

The file stays as the operator left it. `config.source.effective` then gives the last good configuration, until the
settings differ or are applied again.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from appliance import clock, names
from appliance.config.model import Config
from appliance.errors import Failed
from appliance.host import files

from .changes import fleet_entries


def serving() -> frozenset[str]:
    """The engine instances that serve now, as far as the supervisor tells; one that is drained could."""
    return frozenset(name for name, entry in fleet_entries().items() if entry.get("state") in ("serving", "draining"))


def helps(lost: Collection[str], old: Config | None, served: Collection[str]) -> bool:
    """Whether the configuration before is better: one of the lost engines served with it, or it had none of them."""
    if old is None or not lost:
        return False
    return any(instance in served or instance not in old.local_instances for instance in lost)


def reject(path: str, text_digest: str, reason: str) -> None:
    """Set the settings of the file aside, for its readers to see. Raises Failed when that cannot be written."""
    like = os.stat(path)
    target = Path(path).parent / names.REJECTED_NAME
    try:
        said: dict[str, object] = {"text_digest": text_digest, "at": clock.wall(), "reason": reason}
        files.replace_json(target, said, like.st_mode & 0o777)
        os.chown(target, like.st_uid, like.st_gid)
    except OSError as error:
        raise Failed(f"{target} cannot be written: {error.strerror}", hint="take back the edit and apply") from error


def accept(path: str) -> None:
    """Forget that settings were set aside."""
    (Path(path).parent / names.REJECTED_NAME).unlink(missing_ok=True)
