"""README.md and README.zh-CN.md: what they name is there, and both say the same in all that is no prose."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from appliance.cli.main import PROCESSES, VERBS, parser_of
from appliance.config.table import BY_PATH, TABLES
from appliance.errors import UsageError
from tests.bench.report import BEGIN, END

ROOT = Path(__file__).resolve().parents[2]
READMES = ["README.md", "README.zh-CN.md"]
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SPAN = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(?:sudo -E |KEY=\$\()?(llm-appliance [a-z].*?)\)?$")
_NAMED = re.compile(r"(?:llm-(?:appliance|runtime)|generator|journalctl|systemctl)\s")
_DRAWN = re.compile(r"[─│▲▼]+>?|llm-[A-Za-z@]+|HTTP|NVML|vLLM|unix socket")


def _sections(name: str) -> list[str]:
    return re.split(r"^## ", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)


def _code(section: str) -> list[str]:
    """Indented lines without what is prose there: comments, what stands beside a name, words of a drawing."""
    return [code for line in section.splitlines() if line.startswith("    ") and (code := _without_prose(line.strip()))]


def _without_prose(line: str) -> str:
    if re.search("[─│▲▼]", line):
        return " ".join(_DRAWN.findall(line))
    if _NAMED.match(line):
        line = re.split(r"\s{3,}", line)[0]
    return re.sub(r"(^|\s+)#.*$", "", line)


def _commands(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    spans = _SPAN.findall(text)
    lines = [line for section in _sections(name) for line in _code(section)]
    short = [f"llm-appliance {span}" for span in spans if span.partition(" ")[0] in VERBS]
    return [*short, *(found[1] for one in [*spans, *lines] if (found := _COMMAND.match(one)))]


@pytest.mark.parametrize("name", READMES)
def test_commands_are_read_by_their_verbs(name: str) -> None:
    """Words in capitals and in brackets stand for what one puts there."""
    commands = _commands(name)
    assert len(commands) > 15
    for command in commands:
        plain = re.sub(r"\[([^\]]*)\]", r"\1", command.partition(" | ")[0])
        verb, *words = shlex.split(plain)[1:]
        assert verb in VERBS or verb in PROCESSES, command
        if verb in PROCESSES or not words or words[-1] == "--help":
            continue
        try:
            parser_of(verb).parse_args(words)
        except UsageError as error:
            raise AssertionError(f"{command}: {error.message}") from error


@pytest.mark.parametrize("name", READMES)
def test_settings_are_there(name: str) -> None:
    for span in _SPAN.findall((ROOT / name).read_text(encoding="utf-8")):
        if re.fullmatch(r"(gateway|supervisor|auth|audit|runtime|models|network|engine)(\.[a-z_]+)+", span):
            assert span in BY_PATH or span in TABLES, span
        if named := re.fullmatch(r"\[([a-z.]+)\](?: ([a-z_]+)(?: = .*)?)?", span):
            assert named[1] in TABLES or named[1] in BY_PATH, span
            assert named[2] is None or f"{named[1]}.{named[2]}" in BY_PATH, span


@pytest.mark.parametrize("name", READMES)
def test_files_that_are_named_are_there(name: str) -> None:
    spans = set(_SPAN.findall((ROOT / name).read_text(encoding="utf-8")))
    for span in spans:
        if re.fullmatch(r"(tests|appliance|packaging|etc|systemd)/[\w./-]+", span):
            assert (ROOT / span).exists(), span
    examples = {span for span in spans if span in ("nginx.conf", "Caddyfile")}
    assert all((ROOT / "packaging/examples" / span).exists() for span in examples)


def test_both_say_the_same() -> None:
    """Section by section: the same commands, the same words in code, the same figures."""
    first, second = (_sections(name) for name in READMES)
    assert len(first) == len(second)
    for english, chinese in zip(first, second, strict=True):
        where = english.partition("\n")[0]
        assert _code(english) == _code(chinese), where
        assert Counter(_SPAN.findall(english)) == Counter(_SPAN.findall(chinese)), where
        assert _figures(english) == _figures(chinese), where
        assert [row.count("|") for row in _rows(english)] == [row.count("|") for row in _rows(chinese)], where


def test_the_table_that_a_program_writes_is_the_same() -> None:
    first, second = ((ROOT / name).read_text(encoding="utf-8").partition(BEGIN)[2] for name in READMES)
    assert len(first.partition(END)[0]) > 500
    assert first.partition(END)[0] == second.partition(END)[0]


@pytest.mark.parametrize("name", READMES)
def test_each_leads_to_the_other(name: str) -> None:
    title, empty, link = (ROOT / name).read_text(encoding="utf-8").splitlines()[:3]
    (other,) = set(READMES) - {name}
    assert title == "# llm-appliance" and not empty
    assert re.fullmatch(rf"\[\w+\]\({re.escape(other)}\)", link)


def _rows(section: str) -> list[str]:
    return [line for line in section.splitlines() if line.startswith("|")]


def _figures(section: str) -> Counter[str]:
    """Numbers of the prose and of the tables; a thousand may be written with a comma."""
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("    "))
    return Counter(number.replace(",", "") for number in _NUMBER.findall(_SPAN.sub("", prose)))


@pytest.mark.parametrize("name", READMES)
def test_the_first_request_ends_soon(name: str) -> None:
    """As the model samples by default, the smallest one often goes on to the end of its context: minutes on a CPU."""
    (body,) = re.findall(r"^      -d '(.*)'$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert json.loads(body)["temperature"] == 0
