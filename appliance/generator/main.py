"""The systemd generator: the configuration becomes engine instances and drop-ins, at boot and at each daemon-reload.

It writes into the *normal* directory only, so that units and drop-ins in /etc win over it. It runs before local file
systems are mounted and may see a tree that is read-only but for its output: it reads /etc, writes its output, and
speaks to nobody. All is read and rendered before anything is written.

Whatever happens the exit status is 0: a generator that fails would cost a boot, a bad edit must not. With a bad file
the last good configuration makes the units; with neither there are no engines, and the gateway answers on its default
address. One line says so; `llm-config-check.service` is what shows it to people.
"""

from __future__ import annotations

import os
import sys

from appliance import names
from appliance.errors import UsageError


def main(arguments: list[str]) -> int:
    """`NORMAL EARLY LATE`, then perhaps `--config FILE`. Always 0."""
    try:
        message = generate(*_arguments(arguments))
    except UsageError as error:
        message = f"no units: {error}"
    except OSError as error:
        message = f"no units: {error.filename}: {(error.strerror or str(error)).lower()}"
    except Exception as error:  # the top of the process, which may not fail
        message = f"no units: unexpected {type(error).__name__}: {error}"
    if message:
        warn(message)
    return 0


def _arguments(arguments: list[str]) -> tuple[str, str]:
    """(directory to write to, configuration file)."""
    words, config = list(arguments), names.CONFIG_FILE
    if "--config" in words[:-1]:
        at = words.index("--config")
        config = words[at + 1]
        del words[at : at + 2]
    if not words:
        raise UsageError("the directories NORMAL EARLY LATE are missing")
    return words[0], config


def generate(directory: str, config: str = names.CONFIG_FILE) -> str:
    """Write all units below `directory`. What an operator should know of it; empty when all is well.

    Raises OSError when the directory cannot be written.
    """
    from appliance.config import source
    from appliance.units import render

    found = source.effective(config)
    if found.config is None:
        return f"no engines: {_first(found)}; llm-appliance check names every problem"
    rendered = render.units(found.config, config)
    for path, text in rendered.items():
        _write(os.path.join(directory, path), text)
    if found.origin == "last-good":
        return f"{_first(found)}; the last good configuration is used; llm-appliance check names every problem"
    return ""


def _first(found: object) -> str:
    errors = getattr(found, "errors", ())
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0]}{more}" if errors else "no configuration"


def _write(path: str, text: str | None) -> None:
    from appliance.units.render import ENGINE_TEMPLATE

    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if text is None:
        os.symlink(ENGINE_TEMPLATE, path)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def warn(message: str) -> None:
    """One line to standard error, which the generator's shell wrapper points at the kernel log where there is one."""
    line = f"llm-appliance-generator: {message}".replace("\n", " ")[:900]
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens, which is no reason to fail either
