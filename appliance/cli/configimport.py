"""`llm-appliance config import FILE [--write]`: settings for a vLLM that runs by other means today.

FILE is a compose file, a shell script or a command line (`-`: standard input). The settings go to standard output, with
a remark for everything that was left out or renamed; `--write` puts them into a drop-in. Nothing in FILE is run.
"""

from __future__ import annotations

import argparse
import os
import re

from appliance import names
from appliance.config import parse, source
from appliance.errors import EXIT_FOUND, EXIT_OK, Failed, Problem, UsageError

from . import adopt, dropin, output

LARGEST = 1 << 20  # bytes; no script of this kind is longer
DROPIN = "imported.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`FILE [--write]`."""
    parser.add_argument("file", metavar="FILE", help="a compose file, a shell script or a command line; - reads stdin")
    parser.add_argument("--write", action="store_true", help=f"write config.d/{DROPIN} instead of printing")


def run(args: argparse.Namespace) -> int:
    """Print or write what was understood; EXIT_FOUND when it is no valid configuration yet."""
    adopted = read(args.file)
    text = adopt.text_of(adopted)
    problems = _problems(adopted)
    if args.write:
        if args.json:
            raise UsageError("--json prints and --write writes", hint="choose one")
        _write(args.config, text, adopted)
    elif args.json:
        output.print_json(
            {
                "engines": [{"from": each.origin, **each.engine, "remarks": each.remarks} for each in adopted],
                "tables": {table: dict(keys) for each in adopted for table, keys in each.tables.items()},
                "toml": text,
                "problems": [str(problem) for problem in problems],
            }
        )
    else:
        print(text, end="")
    for problem in problems:
        output.note(f"{problem.severity}: {problem}")
    return EXIT_FOUND if any(problem.severity == "error" for problem in problems) else EXIT_OK


def read(path: str) -> tuple[adopt.Adopted, ...]:
    """Every vLLM that a file starts. Raises UsageError where it cannot be read, Failed where it starts none."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or 'error').lower()}") from error
    if len(content) > LARGEST:
        raise Failed(f"{path}: is larger than 1 MiB, so it is neither a script nor a compose file")
    text = content.decode("utf-8", "replace")
    adopted = _compose(path, text) if _is_compose(path, text) else adopt.from_script(text)
    if not adopted:
        raise Failed(
            f"{path}: starts no vLLM that could be found",
            hint="it is found by `vllm serve`, `-m vllm.entrypoints.openai.api_server` or an image of vLLM",
        )
    return adopted


def _is_compose(path: str, text: str) -> bool:
    return path.endswith((".yml", ".yaml")) or re.search(r"^services[ \t]*:", text, re.MULTILINE) is not None


def _compose(path: str, text: str) -> tuple[adopt.Adopted, ...]:
    import yaml  # 15 ms that every other verb of `config` is spared

    try:
        document = yaml.safe_load(text)
        return adopt.from_compose(document, _variables(path))
    except (yaml.YAMLError, RecursionError) as error:
        told = " ".join(str(error).split())
        raise Failed(f"{path}: is no YAML that can be read: {told}") from error
    except ValueError as error:
        raise Failed(f"{path}: {error}", hint="a compose file names its containers under services:") from error


def _variables(path: str) -> dict[str, str]:
    """What compose puts in for `${NAME}`: the `.env` beside the file, below the environment."""
    found: dict[str, str] = {}
    if path != "-":
        try:
            with open(os.path.join(os.path.dirname(path), ".env"), encoding="utf-8", errors="replace") as file:
                lines = file.read(LARGEST).splitlines()
        except OSError:
            lines = []
        for line in lines:
            name, given, value = line.strip().removeprefix("export ").partition("=")
            if given and not name.startswith("#"):
                found[name.strip()] = value.strip().strip("\"'")
    return found | dict(os.environ)


def _problems(adopted: tuple[adopt.Adopted, ...]) -> tuple[Problem, ...]:
    raw: dict[str, object] = {table: dict(keys) for each in adopted for table, keys in each.tables.items()}
    return parse.parse({**raw, "engine": [dict(each.engine) for each in adopted]})[1]


def _write(config: str, text: str, adopted: tuple[adopt.Adopted, ...]) -> None:
    target = dropin.path_of(config, DROPIN)
    if os.path.lexists(target):
        raise Failed(f"{target} is there already", hint="move it away first; nothing was written")
    found = source.effective(config)
    there = {engine.get("name", "default") for engine in found.raw.get("engine", []) if isinstance(engine, dict)}
    taken = sorted(there & {str(each.engine["name"]) for each in adopted})
    if taken:
        raise Failed(
            f"the configuration has an engine {taken[0]} already, and a drop-in would change that one",
            hint="print the settings without --write, and put them in under another name",
        )
    dropin.write(config, target, text)
    print(f"wrote {target}: {', '.join(str(each.engine['name']) for each in adopted)}")
    for each in adopted:
        for remark in each.remarks:
            output.note(f"{each.engine['name']}: {remark}")
    output.note(f"next: {names.check_command(config)}, then llm-appliance apply")
