"""Words of a shell script, by a table; the shell itself is the judge of what can be told without a run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from appliance.wire.shellscript import commands, expand

TELL = "tell"
SCRIPTS = [
    "tell a 'b c' \"d e\" f\\ g",
    "tell a \\\n  b \\\n  c   # tell d",
    "X=1 Y='2 3'; tell $X \"$Y\" $Y ${X}0",
    'ARGS="--a 1 --b"; tell $ARGS; tell "$ARGS"',
    "tell '$X' \"\\$X\" \\$X",
    "export A=b; tell ${A:-c} ${NONE:-d} ${NONE-e} ${A:+f}",
    "A=1 tell a; tell b && tell c || tell d; (tell e)",
    "tell a > /dev/null; tell b 2>&1; tell c >/dev/null 2>/dev/null; tell d 1>&2; tell e &> /dev/null",
    "tell --json '{\"a\": \"b c\", \"d\": [1]}' --x=\"y z\"",
    'X=\'{"a": 1}\'\ntell --json "$X"',
    "#!/bin/bash\n\n# comment\ntell a#b '#c'\n\n",
    "tell \"a 'b' c\" 'd \"e\" f' ''",
    "tell a;tell b&\nwait",
    "tell a\r\ntell b\r\n",
    "readonly A=1\nB=$A\ntell $B",
    "EMPTY=; tell a$EMPTY $EMPTY \"$EMPTY\" b",
    "if true; then\n tell a\nfi",
]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_of_bash(script: str) -> None:
    """Each `tell` prints its words as JSON into descriptor 9."""
    program = f"tell() {{ {sys.executable} -c 'import json,sys; print(json.dumps(sys.argv[1:]))' \"$@\" >&9; }}\n"
    done = subprocess.run(
        ["bash", "-c", "exec 9>&1 1>/dev/null\n" + program + script.replace("\r", "")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "tell d" in script and "||" in script:
        expected = None  # a branch that this run did not take is told, too
    else:
        expected = [json.loads(line) for line in done.stdout.splitlines()]
    told = [list(found.words[found.words.index(TELL) + 1 :]) for found in commands(script) if TELL in found.words]
    assert told == (expected if expected is not None else [["a"], ["b"], ["c"], ["d"], ["e"]])


def test_environment_and_lines() -> None:
    first, second = commands("export A=1\nC=2\n\nB=$A x \\\n y\nA=3\nz")
    assert (first.words, first.env, first.line) == (("x", "y"), {"A": "1", "B": "1"}, 4)
    assert (second.words, second.env, second.line) == (("z",), {"A": "3"}, 7)


@pytest.mark.parametrize(
    ("script", "words", "unread"),
    [
        ("x $(nproc --all) y", ("x", "$(nproc --all)", "y"), ("$(nproc --all)",)),
        ("x `id -u` $1 $@", ("x", "`id -u`", "$1", "$@"), ("`id -u`", "$1", "$@")),
        ("x $UNKNOWN a${UNKNOWN}b", ("x", "$UNKNOWN", "a${UNKNOWN}b"), ("$UNKNOWN", "${UNKNOWN}")),
        ("x $((1 + 2)) ${A%%b}", ("x", "$((1 + 2))", "${A%%b}"), ("$((1 + 2))",)),
        ("x 'not closed", ("x", "not closed"), ()),
        ('x "not closed $(a', ("x", "not closed $(a"), ("$(a",)),
        ("x costs 5$ a$", ("x", "costs", "5$", "a$"), ()),
    ],
)
def test_what_only_a_run_could_tell(script: str, words: tuple[str, ...], unread: tuple[str, ...]) -> None:
    (command,) = commands(script)
    assert (command.words, command.unread) == (words, unread)


def test_any_text_is_read_to_its_end() -> None:
    text = "".join(SCRIPTS)
    for cut in range(len(text)):
        commands(text[cut:] + text[:cut])
        commands(text[:cut])


def test_expand() -> None:
    assert expand("a $X ${Y:-z} ${Z}", {"X": "1", "Y": ""}) == ("a 1 z ${Z}", ("${Z}",))
