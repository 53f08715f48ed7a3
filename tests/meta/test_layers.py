"""Imports go down, as the table in appliance/README.md says; a module that no row covers fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
L0 = {"errors", "names", "quantity", "clock", "samples", "architecture", "hostfacts", "gpufacts"}
IO = {"asyncio", "aiohttp", "socket", "subprocess", "threading", "time", "random", "os", "logging", "pynvml", "psutil",
      "uvloop"}  # fmt: skip


def table() -> dict[str, tuple[set[str], set[str]]]:
    """module prefix -> (what it may import from appliance, what it may never import), read from the README."""
    rows: dict[str, tuple[set[str], set[str]]] = {}
    lines = (ROOT / "appliance/README.md").read_text().split("## Who may import whom")[1].split("I/O means:")[0]
    for line in lines.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        allowed = {word.strip("`") for word in cells[1].split()}
        if "L0" in allowed:
            allowed |= L0
        banned = {word.strip("`,") for word in cells[2].split() if word.startswith("`")}
        if "I/O" in cells[2]:
            banned |= IO - (set() if "`logging`" in cells[2] else {"logging"})
        for module in cells[0].split():
            rows[module.strip("`")] = (allowed, banned)
    return rows


def modules() -> list[Path]:
    return sorted((ROOT / "appliance").rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT / "appliance").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def row_of(module: str, rows: dict[str, tuple[set[str], set[str]]]) -> tuple[set[str], set[str]] | None:
    while module:
        if module in rows:
            return rows[module]
        module = module.rpartition(".")[0]
    return None


def imports(source: str, package: str) -> set[str]:
    """Every module that the source imports, also inside functions, absolute."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).strip(".")
            found |= {f"{base}.{alias.name}" for alias in node.names} if base.startswith("appliance") else {base}
    return found


def faults(module: str, source: str, is_package: bool, rows: dict[str, tuple[set[str], set[str]]]) -> list[str]:
    row = row_of(module, rows)
    if row is None:
        return [f"{module} has no row in the table"]
    allowed, banned = row
    package = f"appliance.{module}" if is_package else f"appliance.{module}".rpartition(".")[0]
    bad = []
    for name in sorted(imports(source, package)):
        top = name.split(".")[0]
        if top in banned:
            bad.append(f"{module} may not import {name}")
        if top == "appliance" and "all" not in allowed:
            inner = name.split(".")[1:]
            prefixes = {".".join(inner[:n]) for n in range(1, len(inner) + 1)}
            if inner and inner != ["__version__"] and not prefixes & allowed:
                bad.append(f"{module} may not import {name}")
    return bad


def test_imports_go_down() -> None:
    rows, found = table(), []
    for path in modules():
        if module := dotted(path):
            found += faults(module, path.read_text(), path.name == "__init__.py", rows)
    assert found == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("policy.hang", "import time", "policy.hang may not import time"),
        ("policy.hang", "from appliance.wire import sse", "policy.hang may not import appliance.wire.sse"),
        ("policy.hang", "import logging", "policy.hang may not import logging"),
        ("gateway.app", "def f():\n    from appliance.supervisor import main",
         "gateway.app may not import appliance.supervisor.main"),
        ("gateway.app", "from ..engine import main", "gateway.app may not import appliance.engine.main"),
        ("utils", "x = 1", "utils has no row in the table"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(module: str, source: str, fault: str) -> None:
    assert faults(module, source, False, table()) == [fault]


CEILING = 400


def test_modules_stay_readable() -> None:
    texts = {dotted(path): path.read_text() for path in modules()}
    assert [module for module, text in texts.items() if len(text.splitlines()) > CEILING] == []
    untold = [module for module, text in texts.items() if not ast.get_docstring(ast.parse(text))]
    assert untold == [], "the first lines say what a file promises"
