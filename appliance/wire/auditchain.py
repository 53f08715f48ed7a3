"""Whether the usage ledger is whole: which line was changed, is missing, out of order or torn, and in which file.

The lines are read once, in the files' order; memory does not grow with them. Laws:

- A line is good when its hash fits its content; the next one has the number after it and holds its hash.
- What a crash left has been set aside, and a line says so: noted. Bytes without an end at the very end are a line that
  is being written, or what a crash left just now: noted, unless the head says that more was there.
- Numbers that never come are `missing`, numbers that come late `reordered`, numbers that come again `repeated`.
- The chain may begin at any number, because old files are deleted; the head says with which one it has to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .auditline import GENESIS, LOST, TORN, BadLine, Head, Line, parse

CHANGED, MISSING, REORDERED, REPEATED = "changed", "missing", "reordered", "repeated"
FINDINGS = 1000  # kept of each report; a ledger that is broken throughout need not fill the memory


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `line` counts from 1, 0 means the file as a whole; a `note` is explained and no fault."""

    file: str
    line: int
    kind: str
    message: str
    note: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.kind}: {self.message}"


@dataclass(slots=True)
class Report:
    """The result: good lines read, first and last number and the hash of the last (None: no line), what was found."""

    files: int = 0
    lines: int = 0
    first: int | None = None
    last: int | None = None
    hash: str | None = None
    faults: int = 0
    findings: list[Finding] = field(default_factory=list)


def verify(files: Iterable[tuple[str, Iterable[bytes]]], head: Head | None) -> Report:
    """Check the files, oldest first, each as its lines with their newlines; `head` must be read before they are."""
    chain = _Chain()
    name = ""
    for name, lines in files:
        chain.begin(name)
        for raw in lines:
            chain.take(raw)
    chain.finish(name or "the directory", head)
    return chain.report


@dataclass(slots=True)
class _Gap:
    """Numbers that have not come yet, and where they should have."""

    first: int
    last: int
    file: str
    line: int


@dataclass(slots=True)
class _Bad:
    line: int
    reason: str
    size: int
    ended: bool


class _Chain:
    """The state between two lines."""

    def __init__(self) -> None:
        self.report = Report()
        self._file, self._line = "", 0
        self._bad: list[_Bad] = []  # lines without sense since the last good one of this file
        self._loose = 0  # how many of them, over files: each may be one of the numbers that do not come
        self._gaps: list[_Gap] = []
        self._first_loose = 0  # how many lines without sense stand before the first good one

    def begin(self, name: str) -> None:
        """A new file."""
        self._flush_bad()
        self._file, self._line = name, 0
        self.report.files += 1

    def take(self, raw: bytes) -> None:
        """The next line of the file."""
        self._line += 1
        ended = raw.endswith(b"\n")
        try:
            if not ended:
                raise BadLine("it has no end")
            line = parse(raw[:-1])
        except BadLine as error:
            self._loose += 1
            if len(self._bad) < FINDINGS:
                self._bad.append(_Bad(self._line, str(error), len(raw), ended))
            return
        if line.body.get("event") == TORN:
            text = f"a crash left {line.body.get('bytes')} bytes here, now in {line.body.get('file')}"
            self._find(self._line, TORN, text, note=True)
        elif line.body.get("event") == LOST:
            self._find(self._line, LOST, f"{line.body.get('count')} lines could not be kept before this one", note=True)
        self._flush_bad()
        self._place(line)
        self._loose = 0

    def _place(self, line: Line) -> None:
        """Compare a good line with the one before."""
        report = self.report
        report.lines += 1
        if report.first is None or report.last is None:
            report.first = line.seq
            self._first_loose = self._loose
            if line.seq == 1 and line.prev != GENESIS:
                self._find(self._line, CHANGED, "the first line of all follows another one")
        elif line.seq <= report.last:
            kind = REORDERED if self._fill(line.seq) else REPEATED
            self._find(self._line, kind, f"line {line.seq} stands behind line {report.last}")
            return
        elif line.seq > report.last + 1:
            if line.seq > report.last + 1 + self._loose:
                self._gaps.append(_Gap(report.last + 1 + self._loose, line.seq - 1, self._file, self._line))
        elif line.prev != report.hash:
            self._find(self._line, CHANGED, f"it does not hold the hash of line {report.last}: one of the two is not "
                       "the one that was written")  # fmt: skip
        report.last, report.hash = line.seq, line.hash

    def _fill(self, seq: int) -> bool:
        for number, gap in enumerate(self._gaps):
            if gap.first <= seq <= gap.last:
                rest = [_Gap(gap.first, seq - 1, gap.file, gap.line), _Gap(seq + 1, gap.last, gap.file, gap.line)]
                self._gaps[number : number + 1] = [part for part in rest if part.first <= part.last]
                return True
        return False

    def _find(self, line: int, kind: str, message: str, *, note: bool = False, file: str = "") -> None:
        self.report.faults += not note
        if len(self.report.findings) < FINDINGS:
            self.report.findings.append(Finding(file or self._file, line, kind, message, note))

    def _flush_bad(self) -> None:
        """What is no line and is explained by nobody was changed, or torn where it has no end."""
        for bad in self._bad:
            kind = CHANGED if bad.ended else TORN
            self._find(bad.line, kind, bad.reason)
        self._bad = []

    def finish(self, name: str, head: Head | None) -> None:
        """After the last line: what never came."""
        report = self.report
        self._file = name
        short = head is not None and (report.last or 0) < head.last
        if len(self._bad) == 1 and not self._bad[0].ended and not short:
            text = f"{self._bad[0].size} bytes of a line that is being written, or that a crash left"
            self._find(self._bad[0].line, TORN, text, note=True)
            self._bad = []
        self._flush_bad()
        for gap in self._gaps:
            self._find(gap.line, MISSING, _missing(gap.first, gap.last) + " before this one", file=gap.file)
        if head is None:
            if report.lines:
                text = "chain.json is missing or unreadable: lines cut off at either end cannot be missed"
                self._find(0, MISSING, text, note=True)
            return
        first = head.last + 1 if report.first is None else report.first
        if first > head.first + self._first_loose and not (report.first is None and self._loose):
            self._find(0, MISSING, _missing(head.first, first - 1) + " at the beginning of the ledger")
        if report.last is None:
            return
        if report.last + self._loose < head.last:
            self._find(0, MISSING, _missing(report.last + 1 + self._loose, head.last) + " at its end")
        elif report.last == head.last and report.hash != head.hash:
            self._find(0, CHANGED, f"line {head.last} is not the one that was written last")


def _missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
