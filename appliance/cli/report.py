"""`llm-appliance report [ID] [--output FILE]`: one file to attach to a bug report.

It holds an incident (the last one, unless an ID is given), versions, the status, the configuration and the last journal
lines of our units. Everything passes the redactor once more, whatever did so before: no prompt, no completion and no
key is inside as far as they can be told by their form, and the file is for its owner alone.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from appliance import __version__, clock, names
from appliance.config import snapshot, source
from appliance.errors import EXIT_OK, Failed, Unreachable
from appliance.host import files, places
from appliance.host.incidents import Bundle, Store
from appliance.quantity import format_size
from appliance.wire.redact import Redactor, secrets_in

from . import gatewayclient, output, status
from .incidents import find, opened, read_all

JOURNAL_LINES = 2000
JOURNAL_S = 20.0
UNITS = ("llm-*",)
_README = """A report of llm-appliance, made at {when}.

{files}

Keys, tokens, passwords and what looks like one, prompts and completions were taken out and read "{hidden}".
Please look through it all the same before you hand it on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`[ID] [--output FILE]`."""
    parser.add_argument("id", nargs="?", metavar="ID", help="an incident; the last one when left out")
    parser.add_argument("--output", metavar="FILE", help="where to write (default llm-appliance-report-ID.tar.gz here)")


def run(args: argparse.Namespace) -> int:
    """Write the report and say what is in it."""
    store = opened()
    bundles = read_all(store)
    bundle = find(store, args.id) if args.id else bundles[-1] if bundles else None
    stem = bundle.incident.id if bundle is not None else output.when(clock.wall()).replace(" ", "T").replace(":", "")
    target = args.output or f"llm-appliance-report-{stem}.tar.gz"
    found = source.effective(args.config)
    parts = contents(args.config, found, store, bundle)
    redactor = Redactor(secrets_in(found.raw))
    clean = {name: redactor.file(name, text) for name, text in parts.items()}
    clean = {"README.txt": _readme(clean, bundle), **clean}
    try:
        files.replace(target, archive(f"llm-appliance-report-{stem}", clean), 0o600)
    except OSError as error:
        raise Failed(f"{target} cannot be written: {(error.strerror or 'error').lower()}") from error
    print(f"{target}: {format_size(os.path.getsize(target))}, {len(clean)} files")
    for name, text in clean.items():
        print(f"  {format_size(len(text.encode())):>10}  {name}")
    print("no prompts and no keys are inside, as far as a program can tell; look through it before you hand it on")
    return EXIT_OK


def contents(config: str, found: source.Effective, store: Store, bundle: Bundle | None) -> dict[str, str]:
    """The texts of a report by name, redacted once where they were written."""
    shown = Redactor().value(found.raw)
    assert isinstance(shown, dict)
    parts = {
        "versions.json": json.dumps(_versions(), indent=2) + "\n",
        "status.json": json.dumps(Redactor().value(_status(config)), indent=2, ensure_ascii=False, default=str) + "\n",
        "config.toml": snapshot.document(shown),
        "problems.txt": "".join(f"{problem}\n" for problem in found.problems),
        "journal.log": _journal(),
    }
    if bundle is not None:
        for name in bundle.files:
            path = Path(store.path(bundle.incident.id, name))
            try:
                parts[f"incident/{name}"] = path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                parts[f"incident/{name}"] = f"cannot be read: {error.strerror}\n"
    return {name: text for name, text in parts.items() if text}


def archive(directory: str, parts: Mapping[str, str]) -> bytes:
    """A tar.gz with the texts below one directory."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, text in parts.items():
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"{directory}/{name}")
            member.size, member.mtime, member.mode = len(data), int(clock.wall()), 0o600
            tar.addfile(member, io.BytesIO(data))
    return held.getvalue()


def _readme(parts: Mapping[str, str], bundle: Bundle | None) -> str:
    about = f"incident/ is {bundle.incident.id}\n" if bundle is not None else "there was no incident\n"
    listed = "".join(f"  {name}\n" for name in parts)
    return _README.format(when=output.when(clock.wall()), files=about + listed, hidden="(hidden)")


def _versions() -> dict[str, object]:
    where = places.from_environment()
    runtime = files.read_json(where.under_run(names.RUNTIME_STATE)) or {}
    return {
        "appliance": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": _os_name(),
        "vllm": runtime.get("version"),
        "device": runtime.get("device"),
    }


def _os_name() -> str:
    try:
        return str(platform.freedesktop_os_release().get("PRETTY_NAME", ""))
    except OSError:
        return ""


def _status(config: str) -> Mapping[str, object]:
    try:
        return gatewayclient.read_status(config)
    except Unreachable:
        return status.from_files(config)


def _journal() -> str:
    """The last lines of our units; why not, where there is no journal."""
    argv = ["journalctl", "--no-pager", "-q", "-o", "short-iso-precise", f"--lines={JOURNAL_LINES}"]
    argv += [f"--unit={unit}" for unit in UNITS]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=JOURNAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the journal cannot be read: {error}\n"
    return done.stdout.decode(errors="replace")
