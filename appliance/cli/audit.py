"""`llm-appliance audit show|verify`: the usage ledger, read from its files; the gateway need not run.

`verify` exits with 0 when every line is the one that was written and none is missing, with 1 when it found something.
`show` reads what can be read and says where it could not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from appliance import clock, names
from appliance.config import source
from appliance.errors import EXIT_FOUND, EXIT_OK, Failed, Unreachable, UsageError
from appliance.host import auditfiles, keystore
from appliance.quantity import parse_duration
from appliance.wire import auditchain

from . import output

Entry = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own verbs."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="the requests, or what they add up to")
    show.add_argument("--key", metavar="NAME|ID", help="only the requests of this key")
    show.add_argument(
        "--since", metavar="WHEN", default="24h", help="a time ago like 2h, or a date like 2026-01-31 (default: 24h)"
    )
    show.add_argument("--sum", action="store_true", help="sums for each key and model")
    actions.add_parser("verify", help="find lines that were changed, are missing, out of order or torn")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    where = directory(args.config)
    try:
        if args.action == "verify":
            return _verify(where, args.json)
        return _show(args, where)
    except FileNotFoundError as error:
        hint = "the gateway makes it at its first start; audit.directory names it"
        raise Unreachable(f"there is no usage ledger at {error.filename}", hint=hint) from None


def directory(config_path: str) -> str:
    """The ledger's directory by a configuration. Raises ConfigInvalid."""
    return source.path_setting(config_path, "audit", "directory", names.AUDIT)


# --- verify -------------------------------------------------------------------------------------------------------
def _verify(where: str, as_json: bool) -> int:
    head = auditfiles.head(where)  # before the lines, which may grow meanwhile
    files = [(name, auditfiles.lines(os.path.join(where, name))) for name in auditfiles.names(where)]
    report = auditchain.verify(files, head)
    if as_json:
        output.print_json({"directory": where, "good": not report.faults, **asdict(report)})
        return EXIT_FOUND if report.faults else EXIT_OK
    for finding in report.findings:
        text = output.clean(f"{'note' if finding.note else 'FAULT'}: {finding}")
        print(output.paint(text, "yellow" if finding.note else "red"))
    if report.faults > sum(not finding.note for finding in report.findings):
        print("and more of them; only the first are listed")
    lines, files_ = _count(report.lines, "line"), _count(report.files, "file")
    if report.lines:
        print(f"{where}: {lines} in {files_}, {report.first} to {report.last}\nlast hash {report.hash}")
    else:
        print(f"{where}: no line yet")
    if report.faults:
        raise Failed(f"the usage ledger is not whole: {_count(report.faults, 'fault')}")
    print(output.paint("the usage ledger is whole", "green"))
    return EXIT_OK


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- show ---------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Sum:
    """What the requests of one key for one model add up to."""

    requests: int = 0
    ok: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0  # requests whose completion tokens are estimated: they broke off

    def add(self, entry: Entry) -> None:
        """One more."""
        self.requests += 1
        self.ok += entry.get("outcome") == "ok"
        self.prompt_tokens += _whole(entry.get("prompt_tokens"))
        self.cached_tokens += _whole(entry.get("cached_tokens"))
        self.completion_tokens += _whole(entry.get("completion_tokens"))
        self.estimated += bool(entry.get("estimated"))


def _whole(value: object) -> int:
    """A count; an unknown one adds nothing to a sum."""
    return value if isinstance(value, int) else 0


def _show(args: argparse.Namespace, where: str) -> int:
    since = _moment(args.since, clock.wall())
    keys = _key_ids(args.config, args.key) if args.key else None
    unread = 0

    def chosen() -> Iterator[Entry]:
        nonlocal unread
        for entry in auditfiles.entries(where, since, _utc_day(since)):
            if entry is None:
                unread += 1
            elif keys is None or entry.get("key_id") in keys:
                yield entry

    if args.sum:
        _print_sums(chosen(), {key.id: key.name for key in _keys(args.config)}, args.json)
    elif args.json:
        output.print_json(list(chosen()))
    else:
        rows = [_row(entry) for entry in chosen()]
        output.table(rows, ("TIME", "KEY", "RESULT", "PROMPT", "OUT", "TOTAL", "MODEL"))
        if not rows:
            output.note("no request is on record for that")
    if unread:
        output.note(f"{_count(unread, 'line')} cannot be read; llm-appliance audit verify says which")
    return EXIT_OK


def _row(entry: Entry) -> tuple[object, ...]:
    tokens = entry.get("completion_tokens")
    total = entry.get("total_ms")
    return (
        output.when(entry["at"])[5:],
        entry.get("key_id") or "-",
        f"{entry.get('status')} {entry.get('code') or entry.get('outcome')}",
        entry.get("prompt_tokens"),
        f"~{tokens}" if entry.get("estimated") else tokens,
        f"{total / 1000:.2f}s" if isinstance(total, (int, float)) else None,
        entry.get("model"),
    )


def _print_sums(entries: Iterator[Entry], key_names: dict[str, str], as_json: bool) -> None:
    """A key that is no longer in its file has no name."""
    sums: dict[tuple[str, str], _Sum] = {}
    for entry in entries:
        sums.setdefault((str(entry.get("key_id") or ""), str(entry.get("model") or "")), _Sum()).add(entry)
    ordered = sorted(sums.items())
    if as_json:
        output.print_json(
            [
                {"key_id": key, "key_name": key_names.get(key), "model": model, **asdict(one)}
                for (key, model), one in ordered
            ]
        )
        return
    output.table(
        [
            (key or "-", key_names.get(key), one.requests, one.ok, one.prompt_tokens, one.cached_tokens,
             f"{'~' if one.estimated else ''}{one.completion_tokens}", model or "-")
            for (key, model), one in ordered
        ],
        ("KEY", "NAME", "REQUESTS", "OK", "PROMPT", "CACHED", "COMPLETION", "MODEL"),
    )  # fmt: skip
    if not ordered:
        output.note("no request is on record for that")


def _key_ids(config_path: str, word: str) -> set[str]:
    """The ids of the keys with this name or id; a key that is no longer in the file is found by its id."""
    return {key.id for key in _keys(config_path) if word in (key.name, key.id)} or {word}


def _keys(config_path: str) -> Sequence[keystore.Key]:
    """The keys in their file, as far as it can be read."""
    found = source.effective(config_path)
    try:
        return keystore.read(found.config.auth.keys_file if found.config else names.KEYS_FILE).keys
    except (keystore.KeysInvalid, OSError):
        return ()


def _moment(text: str, now: float) -> float:
    """Seconds since the epoch of a time ago or of a date, which is local like the times that are shown."""
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is no time", hint="write 2h, or a date like 2026-01-31") from None


def _utc_day(epoch: float) -> str:
    """The first file that can hold a request that came then; the epoch for what lies before it."""
    return datetime.fromtimestamp(max(epoch, 0.0), timezone.utc).strftime("%Y-%m-%d")
