"""Every file of the corpus is judged as the file beside it says, message by message."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import source

CORPUS = Path(__file__).resolve().parents[2] / "corpus/config"
INVALID = sorted((CORPUS / "invalid").glob("*.toml"))
VALID = sorted((CORPUS / "valid").glob("*.toml"))


def messages(found: source.Effective) -> list[str]:
    return [f"{p.severity}: {str(p).replace(f'{CORPUS}/', '').partition('/')[2]}" for p in found.problems]


def expected(file: Path) -> list[str]:
    beside = file.with_suffix(".expected")
    return beside.read_text().splitlines() if beside.exists() else []


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_an_invalid_file_is_refused_with_every_problem(file: Path) -> None:
    found = source.load(str(file))
    assert messages(found) == expected(file)
    assert found.config is None
    assert found.origin == "none"


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_a_valid_file_is_read(file: Path) -> None:
    found = source.load(str(file))
    assert messages(found) == expected(file)
    assert found.config is not None
    assert found.origin == "file"


def test_the_corpus_is_there() -> None:
    assert len(INVALID) >= 17
    assert len(VALID) >= 6
    assert not [file for file in INVALID if not expected(file)]
