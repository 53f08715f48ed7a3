"""`tests/run --bench [SCENARIO ...]`: what the gateway costs, beside nginx and vllm-router, each figure beside its bar.

Progress goes to standard error, the table to standard output. Status 1 when a measure falls short of its bar or could
not be taken; 130 after Ctrl-C, with the table of what was measured until then.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support import provisions

from . import measures, report, session
from .scenarios import NAMES, Row

READMES = (provisions.ROOT / "README.md", provisions.ROOT / "README.zh-CN.md")
SHORT, INTERRUPTED = 1, 130
BAD = ("short", "failed")


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    about, rows = _kept(options)
    status = 0 if options.show else _run(options, about, rows)
    found = measures.Rows(rows)
    verdicts = [measures.judge(found, measure) for measure in measures.MEASURES]
    print(report.table([verdict for verdict in verdicts if verdict.word != "not run"]))
    _write(options.json, rows, about)
    if options.readme and not status:
        text = report.markdown(verdicts, about, len(found.reps))
        for path in READMES:
            report.write_readme(path, text)
    return status or (SHORT if any(verdict.word in BAD for verdict in verdicts) else 0)


def _run(options: argparse.Namespace, about: dict[str, Any], rows: list[Row]) -> int:
    """Add rows; 130 after Ctrl-C, else 0."""
    _raise_file_limit()
    _end_like_ctrl_c()
    if report.busy(about):
        report.say(f"the machine is busy (load {about['load']:.1f} on {about['cores']} cores): times will be too long")

    def keep(row: Row) -> None:
        rows.append(row)
        _write(options.json, rows, about)

    first = max((row.rep for row in rows if row.scenario in options.scenarios), default=0) + 1
    try:
        session.run(range(first, first + options.repetitions), options.scenarios, keep, report.say)
    except KeyboardInterrupt:
        report.say("stopped")
        return INTERRUPTED
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    scenarios = "\n".join(f"  {name:15} {words}" for name, words in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="tests/run --bench",
        description="Measure the gateway against nginx and vllm-router.",
        epilog=f"scenarios:\n{scenarios}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="only these, for the measures that need them")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="of everything (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured, as it comes")
    parser.add_argument("--add", action="store_true", help="keep the runs that FILE holds, and add to them")
    parser.add_argument("--show", action="store_true", help="run nothing: the table of FILE")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md and README.zh-CN.md")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.scenarios) - set(NAMES))
    if unknown:
        parser.error(f"there is no scenario {', '.join(unknown)}")
    if (options.add or options.show) and options.json is None:
        parser.error("--add and --show need --json FILE")
    if options.repetitions < 1:
        parser.error("--repetitions must be 1 or more")
    options.scenarios = options.scenarios or list(NAMES)
    return options


def _kept(options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    """The machine, and rows of an earlier run that are asked for."""
    if options.show or (options.add and options.json.exists()):
        value = json.loads(options.json.read_text())
        return value["machine"], [Row(**row) for row in value["rows"]]
    return report.machine(), []


def _write(path: Path | None, rows: list[Row], about: dict[str, Any]) -> None:
    if path is None:
        return
    found = measures.Rows(rows)
    verdicts = [measures.judge(found, measure) for measure in measures.MEASURES]
    value = {"v": 1, "machine": about, "measures": report.as_json(verdicts), "rows": [row.json() for row in rows]}
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(value, indent=1) + "\n")
    fresh.replace(path)


def _raise_file_limit() -> None:
    """For the servers that are started from here: a stream takes two files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _end_like_ctrl_c() -> None:
    """SIGTERM takes down what runs as Ctrl-C does; a shell that starts this in the background has Ctrl-C ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
