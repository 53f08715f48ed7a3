"""Findings as people read them: under headings, what is wrong in full, what is good in a few words.

Findings that say the same of several checks are one line: a driver that does not answer is told once.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from appliance.policy.finding import Finding, Verdict

from . import output

COLOURS = {
    Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.UNKNOWN: "blue", Verdict.SKIPPED: "grey",
}  # fmt: skip
WORDS = {
    Verdict.FAIL: ("wrong", "wrong"), Verdict.WARN: ("warning", "warnings"),
    Verdict.UNKNOWN: ("not known", "not known"), Verdict.OK: ("good", "good"), Verdict.SKIPPED: ("skipped", "skipped"),
}  # fmt: skip
NAME_COLUMN, TEXT_COLUMN = 8, 21


def line(finding: Finding, columns: int | None) -> str:
    """One finding, its remedy below it."""
    head = f"{output.paint(f'{finding.verdict.value:<7}', COLOURS[finding.verdict])} {finding.name:<12} "
    text = "\n".join(_wrapped(output.clean(finding.evidence), columns))
    remedy = "".join(f"\n{' ' * TEXT_COLUMN}{each}" for each in _remedy(finding, columns))
    return f"{head}{text}{remedy}"


def page(findings: Sequence[Finding], groups: Mapping[str, str], columns: int | None, *, whole: bool) -> Iterator[str]:
    """All lines; with `whole` the good ones have one each."""
    for group in dict.fromkeys(groups.values()):
        here = [finding for finding in findings if groups.get(finding.name) == group]
        if not here:
            continue
        yield output.paint(group, "bold")
        ordered = sorted(here, key=lambda finding: list(WORDS).index(finding.verdict))
        good = [finding for finding in ordered if finding.verdict is Verdict.OK and not whole]
        for merged in _merged([finding for finding in ordered if finding not in good]):
            yield line(merged, columns)
        faulty = {finding.name for finding in ordered if finding.verdict is not Verdict.OK}
        names = ", ".join(dict.fromkeys(finding.name for finding in good if finding.name not in faulty))
        if names:
            yield f"{output.paint(f'{Verdict.OK.value:<7}', 'green')} " + "\n".join(
                _wrapped(names, columns, NAME_COLUMN)
            )


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """How many of each verdict, and how long it took."""
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in WORDS}
    told = ", ".join(f"{count} {WORDS[verdict][count != 1]}" for verdict, count in counts.items() if count)
    return f"{told or 'nothing was looked at'}; {seconds:.1f} s"


def _merged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Those that say the same as one with all their names, where the first of them stands."""
    alike: dict[tuple[Verdict, str, str], list[str]] = {}
    for finding in findings:
        alike.setdefault((finding.verdict, finding.evidence, finding.remedy), []).append(finding.name)
    for (verdict, evidence, remedy), names in alike.items():
        if len(set(names)) == 1:
            yield Finding(names[0], verdict, evidence, remedy)
        else:
            yield Finding("", verdict, f"{', '.join(dict.fromkeys(names))}: {evidence}", remedy)


def _remedy(finding: Finding, columns: int | None) -> list[str]:
    if not finding.remedy:
        return []
    first, *rest = _wrapped(output.clean(finding.remedy), columns, TEXT_COLUMN + 3)
    return [f"-> {first}", *(each[TEXT_COLUMN:] for each in rest)]


def _wrapped(text: str, columns: int | None, indent: int = TEXT_COLUMN) -> list[str]:
    """Lines of a terminal's width, all but the first indented; a pipe gets one."""
    if columns is None:
        return [text]
    width = max(columns - indent, 20)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [lines[0], *(" " * indent + each for each in lines[1:])]
