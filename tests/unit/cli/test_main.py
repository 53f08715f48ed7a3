from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.cli import main as cli
from appliance.cli.examples import EXAMPLES
from appliance.errors import ConfigInvalid, Failed, Problem, Unreachable, UsageError


def test_the_manual_has_every_verb() -> None:
    manual = (Path(__file__).resolve().parents[3] / "packaging/man/llm-appliance.1").read_text()
    items = " ".join(re.findall(r"^\.TP\n\.B[IR]? (.*)", manual, re.MULTILINE))
    assert [verb for verb in cli.VERBS if not re.search(rf"(?<![-\w]){verb}\b", items.replace("\\fP", " "))] == []


def _said(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a verb, its own verbs and their options, but for those that all verbs have."""
    for action in parser._actions:
        yield from (option for option in action.option_strings if option[:2] == "--")
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield word
                yield from _said(child)


@pytest.mark.parametrize("word", cli.VERBS)
def test_the_manual_says_what_a_verb_takes(word: str) -> None:
    """Of bench it names the chief options and refers to --help."""
    manual = (Path(__file__).resolve().parents[3] / "packaging/man/llm-appliance.1").read_text().replace("\\-", "-")
    words = set(re.findall(r"[-\w]+", manual))
    taken = set(_said(cli.parser_of(word))) - {"--help", "--config", "--json"}
    assert word == "bench" or sorted(taken - words) == []


def _typed(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a verb and of its own verbs whose text is read by a function of ours."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _typed(child)
        elif action.type not in (None, int, float):
            yield action


@pytest.mark.parametrize("word", cli.VERBS)
def test_a_wrong_value_is_told_in_words_and_not_by_the_name_of_a_function(word: str) -> None:
    for action in _typed(cli.parser_of(word)):
        assert callable(action.type)
        for text in ("many", "", "-1", "1,many"):
            with pytest.raises(argparse.ArgumentTypeError):
                action.type(text)


def test_help_of_a_verb_of_a_verb_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "create", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--daily-tokens" in shown and "Make a key and print it." in shown
    assert cli.main(["help", "keys", "create"]) == 0
    assert capsys.readouterr().out == shown


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds a verb `probe` whose `run` is given; with a verb of its own, `probe list`."""

    def add(run: Callable[[argparse.Namespace], int], *, nested: bool = False) -> None:
        module = types.ModuleType("probe_verb")

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            if nested:
                parser.add_subparsers(dest="what", required=True).add_parser("list")
            else:
                parser.add_argument("word", nargs="?")

        module.add_arguments = add_arguments  # type: ignore[attr-defined]
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_verb", module)
        monkeypatch.setitem(cli.VERBS, "probe", cli.Verb("probe_verb", "probe", json=True))

    return add


def fail(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Failed("it broke", hint="mend it"), 1, ["llm-appliance: it broke", "hint: mend it"]),
        (UsageError("wrong word"), 2, ["wrong word"]),
        (Unreachable("nobody there"), 3, ["nobody there"]),
        (
            ConfigInvalid([Problem("a.b", "is bad", "say c", "f.toml", 3), Problem("x", "odd", severity="warning")]),
            2,
            ["error: f.toml:3: a.b: is bad (say c)", "warning: x: odd"],
        ),
        (PermissionError(13, "Permission denied", "/etc/keys"), 3, ["/etc/keys: permission denied", "root"]),
        (FileNotFoundError(2, "No such file or directory", "/x"), 3, ["/x: no such file"]),
        (ValueError("odd"), 1, ["unexpected ValueError: odd", "LLM_APPLIANCE_DEBUG"]),
        (KeyboardInterrupt(), 130, []),
        (BrokenPipeError(), 0, []),
    ],
)
def test_an_error_ends_as_a_sentence(
    verb: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    said: list[str],
) -> None:
    monkeypatch.delenv("LLM_APPLIANCE_DEBUG", raising=False)
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)
    verb(fail(error))
    assert cli.main(["probe"]) == status
    told = capfd.readouterr().err
    assert "Traceback" not in told
    for words in said:
        assert words in told


def test_problems_that_were_all_printed_need_no_check(
    verb: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    verb(fail(ConfigInvalid([Problem("a.b", "is bad", "say c", "f.toml", 3)])))
    assert cli.main(["probe"]) == 2
    assert capfd.readouterr().err == "error: f.toml:3: a.b: is bad (say c)\n"


def test_debug_shows_where(
    verb: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_APPLIANCE_DEBUG", "1")
    verb(fail(Failed("it broke")))
    assert cli.main(["probe"]) == 1
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "config", "as_json"),
    [
        (["probe"], "/etc/llm-appliance/config.toml", False),
        (["--config", "a", "probe"], "a", False),
        (["--config=a", "probe"], "a", False),
        (["probe", "--config", "a"], "a", False),
        (["--config", "a", "probe", "--config", "b"], "b", False),
        (["--json", "probe"], "/etc/llm-appliance/config.toml", True),
        (["probe", "--json", "--config", "a"], "a", True),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_options_before_and_after(
    verb: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    config: str,
    as_json: bool,
    nested: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).touch()
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    verb(run, nested=nested)
    if nested:
        at = words.index("probe") + 1
        words = [*words[:at], "list", *words[at:]]
    assert cli.main(words) == 0
    assert (seen[0].config, seen[0].json) == (config, as_json)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "did you mean 'status'"),
        (["gatway"], "did you mean 'gateway'"),
        (["xyzzy"], "there is no verb 'xyzzy'"),
        (["--nonsense"], "unknown option --nonsense"),
        (["--config"], "--config needs a file"),
        (["hold"], "ENGINE"),
        (["hold", "chat", "--force"], "--force"),
        (["status", "--watch", "x"], "argument --watch: 'x' is not a number of seconds, 0.1 to 86400"),
        (["top", "--interval", "nan"], "argument --interval: 'nan' is not a number of seconds, 0.1 to 86400"),
        (["--json", "hold", "chat"], "hold prints no JSON"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    told = capfd.readouterr().err
    assert said in told
    assert "hint:" in told


@pytest.mark.parametrize("word", cli.VERBS)
def test_a_configuration_that_was_named_must_be_there(
    word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(EXAMPLES[word][0])
    for file in (tmp_path / "none.toml", tmp_path):
        assert cli.main([*words, "--config", str(file)]) == cli.main(["--config", str(file), *words]) == 2
        told = "".join(capfd.readouterr())
        assert told.count(f"{file}: ") >= 2 and ("no such file" in told) == (file != tmp_path)


@pytest.mark.parametrize("name", cli.PROCESSES)
def test_a_process_says_what_its_options_are(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) if name == "supervisor" else contextlib.nullcontext():
        assert main([name, "--help"]) == 0
    assert "--config FILE the configuration file (default /etc/" in " ".join(capfd.readouterr().out.split())


def test_help_and_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capfd.readouterr().out
    for name, row in cli.VERBS.items():
        assert f"  {name} " in shown
        assert row.purpose in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert cli.main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("llm-appliance ")
    assert cli.main([]) == 2


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_is_there_and_explains_itself(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    shown = capfd.readouterr().out
    assert "--config" in shown
    assert ("--json" in shown) is cli.VERBS[name].json
