"""The hash-pinned dependencies that the package carries, and what is said of their licences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted((ROOT / "packaging/locks").glob("control-*.txt"))
MODULES = {
    "pyyaml": "yaml/*",
    "nvidia-ml-py": "pynvml.py",
    "typing-extensions": "typing_extensions.py",
    "attrs": "attrs/*",
}


def pinned(lock: Path) -> dict[str, str]:
    """Package -> the rest of its line."""
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    return {line.partition("==")[0]: line.partition("==")[2] for line in lines}


def test_there_is_a_lock_for_each_python() -> None:
    assert [lock.stem for lock in LOCKS] == [f"control-3.{minor}" for minor in (10, 11, 12, 13)]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_each_line_is_one_version_with_one_hash(lock: Path) -> None:
    for package, rest in pinned(lock).items():
        assert re.fullmatch(r"[a-z][a-z0-9-]*", package)
        assert re.fullmatch(r"[0-9][0-9.]* --hash=sha256:[0-9a-f]{64}", rest), package


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_the_direct_dependencies_are_all_there(lock: Path) -> None:
    declared = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert declared is not None
    wanted = set(re.findall(r'"([a-z-]+)', declared[1]))
    if lock.stem != "control-3.10":
        wanted.remove("tomli")
    assert wanted <= set(pinned(lock))


def test_the_copyright_file_knows_each_of_them() -> None:
    text = (ROOT / "packaging/debian/copyright").read_text()
    files = " ".join(re.findall(r"^Files: (.*)$", text, re.MULTILINE))
    for lock in LOCKS:
        for package in pinned(lock):
            module = MODULES.get(package, f"{package.replace('-', '_')}/*")
            assert f"site/*/{module}" in files, package


def test_each_paragraph_on_files_names_its_licence_and_each_licence_has_its_words() -> None:
    _, *paragraphs = (ROOT / "packaging/debian/copyright").read_text().split("\n\n")
    named, told = set(), set()
    for paragraph in paragraphs:
        keys = re.findall(r"^([A-Z][a-z]+):", paragraph, re.MULTILINE)
        (licence,) = re.findall(r"^License: (.*(?:\n .*)*)", paragraph, re.MULTILINE)
        if keys[0] == "Files":
            assert keys[:3] == ["Files", "Copyright", "License"] and "\n" not in licence, paragraph
            named |= set(re.findall(r"[A-Z][\w.-]+", licence))
        else:
            assert keys == ["License"] and "\n" in licence, paragraph
            told.add(licence.partition("\n")[0])
    assert named == told


def test_no_host_is_named() -> None:
    for path in [*LOCKS, *(ROOT / "packaging").glob("*.sh"), ROOT / "packaging/debian/rules"]:
        assert "://" not in path.read_text(), path.name
