"""A drop-in of the configuration that a verb derives: written when its user agrees, if what results is valid."""

from __future__ import annotations

import sys
from pathlib import Path

from appliance import names
from appliance.config import source
from appliance.errors import Failed, Unreachable
from appliance.host import files

from . import output


def path_of(config_path: str, name: str) -> Path:
    """Where it lies."""
    return Path(config_path).absolute().parent / names.DROPIN_DIRECTORY / name


def agreed(path: Path) -> bool:
    """Ask a person. Where nobody can be asked the answer is no."""
    if not (sys.stdin.isatty() and output.is_terminal()):
        return False
    try:
        return input(f"write {path}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def write(config_path: str, path: Path, text: str) -> None:
    """Put it in place; what was there comes back where the configuration is invalid with it.

    Raises Failed, Unreachable where this user may not write.
    """
    if source.load(config_path).config is None:
        hint = names.check_command(config_path)
        raise Failed("nothing was written: the configuration has errors", hint=hint)
    try:
        before = path.read_bytes() if path.exists() else None
        path.parent.mkdir(mode=0o755, exist_ok=True)
        files.replace(path, text.encode())
    except PermissionError as error:
        raise Unreachable(f"{path} cannot be written", hint="run the command as root (sudo)") from error
    found = source.load(config_path)
    if found.config is not None:
        return
    if before is None:
        path.unlink()
    else:
        files.replace(path, before)
    raise Failed(f"nothing was written: {found.errors[0]}", hint="write the settings into the file by hand")
