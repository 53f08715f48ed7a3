"""Rows, model and documents say the same."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from appliance.config import diff, sample, source, values
from appliance.config.model import Config, Engine
from appliance.config.parse import parse
from appliance.config.table import BY_PATH, ROWS, TABLES, Row, keys_of

ROOT = Path(__file__).resolve().parents[3]


def model_paths(value: object, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for field in fields(value):  # type: ignore[arg-type]
        inner = getattr(value, field.name)
        path = f"{prefix}{field.name}"
        found |= model_paths(inner, f"{path}.") if is_dataclass(inner) else {path}
    return found


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    general = model_paths(Config()) - {"engines"}
    assert {row.path for row in ROWS} == general | {f"engine.{name}" for name in model_paths(Engine())}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_a_default_is_the_models(row: Row) -> None:
    held = getattr(Engine(), row.key) if row.table == "engine" else diff.value_of(Config(), row.path)
    assert held == row.default
    assert type(held) is type(row.default)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_an_example_is_valid_and_not_the_default(row: Row, tmp_path: Path) -> None:
    header = "[[engine]]" if row.table == "engine" else f"[{row.table}]"
    file = tmp_path / "config.toml"
    file.write_text(f"{header}\n{row.key} = {row.example}\n")
    raw = source.tomllib.loads(file.read_text())
    for part in row.path.split("."):
        raw = raw[part][0] if isinstance(raw[part], list) and part == "engine" else raw[part]
    assert values.read(row, raw) != row.default


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind in ("duration", "size", "int", "bool", "choice")],
                         ids=lambda row: row.path)  # fmt: skip
def test_a_default_is_spelt_as_it_reads(row: Row) -> None:
    raw = source.tomllib.loads(f"x = {sample.default_of(row)}")["x"]
    assert values.read(row, raw) == row.default


def test_bounds_hold_the_default() -> None:
    for row in ROWS:
        if row.low is not None and isinstance(row.default, (int, float)):
            assert row.high is not None
            assert row.low <= row.default <= row.high, row.path


def test_tables_know_their_keys() -> None:
    assert keys_of("")["gateway"] is None
    assert keys_of("gateway")["listen"] is BY_PATH["gateway.listen"]
    assert keys_of("gateway")["admission"] is None
    assert set(TABLES) >= {row.table for row in ROWS}


def test_the_reference_file_is_generated() -> None:
    assert (ROOT / "etc/reference.toml").read_text() == sample.reference(), "run packaging/make_configdocs.py"


def test_the_manual_page_is_generated() -> None:
    assert (ROOT / "packaging/man/llm-appliance-config.5").read_text() == sample.manual(), (
        "run packaging/make_configdocs.py"
    )


def test_the_reference_file_means_the_defaults_with_and_without_its_keys() -> None:
    text = sample.reference()
    assert parse(source.tomllib.loads(text)) == (Config(), ())
    opened = re.sub(r"(?m)^#(?=[a-z_]+ = )", "", text)
    assert opened.count("\n#") < text.count("\n#") - len(ROWS) + 1
    assert parse(source.tomllib.loads(opened)) == (Config(), ())


def test_the_shipped_file_is_small_and_means_the_defaults() -> None:
    text = (ROOT / "etc/config.toml").read_text()
    assert len(text.splitlines()) <= 10
    assert parse(source.tomllib.loads(text)) == (Config(), ())


def test_the_shipped_file_never_changes() -> None:
    """An edited conffile and another shipped one end an unattended upgrade at dpkg's question, half configured."""
    digest = hashlib.sha256((ROOT / "etc/config.toml").read_bytes()).hexdigest()
    assert digest == "0c09014256a706cbe8596e7be4868c3e3249716ac1cad39ff1d8522fd08c044a"


def test_explanations() -> None:
    told = sample.explain("supervisor.hang.confirm")
    assert told is not None
    assert told["default"] == '"90s"'
    assert "nothing restarts" in told["effect"]
    assert (sample.explain("gateway") or {})["keys"][0] == "gateway.listen"
    assert "integer" not in (sample.explain("engine.vllm.max_model_len") or {})["kind"]
    assert "refused" in (sample.explain("engine.vllm.host") or {})
    assert "legacy" in (sample.explain("engine.vllm.swap_space") or {})
    assert sample.explain("nonsense") is None
    assert sample.nearest("hang.confirm") == ("supervisor.hang.confirm",)
