"""Boxes for the system tests: the package as built, the real vLLM; the journal is printed when a test fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box

from tests.support import layers
from tests.support.machine import Appliance

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SOURCES = ("appliance", "systemd", "etc", "packaging/debian", "packaging/locks", "packaging/man", "packaging/examples")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is a system test, and takes its time: making the runtime for the first time takes minutes."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the journals of the boxes that a failed test used."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            box = value.box if isinstance(value, Appliance) else value
            if isinstance(box, Box) and box.running:
                report.sections.append(("journal of the box", box.journal("-b -n 150")))
    return report


@pytest.fixture(scope="session")
def deb() -> Path:
    """The package, built from this tree; anew when something in the tree is newer than it."""
    path = ROOT / "dist/llm-appliance.deb"
    sources = [file for part in SOURCES for file in (ROOT / part).rglob("*") if "__pycache__" not in file.parts]
    if not path.exists() or any(file.stat().st_mtime > path.stat().st_mtime for file in sources if file.is_file()):
        build(path)
    return path


@pytest.fixture(scope="session")
def newer_deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a higher version."""
    path = tmp_path_factory.mktemp("deb") / "llm-appliance-newer.deb"
    build(path, "--version", "99.0.0")
    return path


def build(path: Path, *options: str) -> None:
    """Build the package."""
    command = [str(ROOT / "packaging/build-deb.sh"), "--output", str(path), *options]
    subprocess.run(command, check=True, timeout=600)


@pytest.fixture(scope="module")
def appliance(deb: Path) -> Iterator[Appliance]:
    """A machine that was installed, powered off and has booted again; serving. One for each file of tests.

    $LLM_APPLIANCE_BOX names a running box to be used instead, while tests are being written.
    """
    given = os.environ.get("LLM_APPLIANCE_BOX")
    if given:
        yield Appliance(Box.attach(given))
        return
    layer = layers.installed_layer("bookworm", deb)
    with Box.start("bookworm", [layer], network="private") as box:
        machine = Appliance(box)
        machine.wait_ready()
        yield machine
