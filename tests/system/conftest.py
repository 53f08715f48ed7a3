"""Boxes for the system tests: the package as built, the real vLLM; the journal is printed when a test fails."""

from __future__ import annotations

import os
import re
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


# The same machine goes through these, one boot for all: each leaves it serving but the last, which purges.
IN_TURN = ("test_serving", "test_costs", "test_recovery", "test_gateway_life", "test_configuration", "test_package")
NEWER = "99.0.0"
SPOILT = pytest.StashKey[bool]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Everything here is a system test, and takes its time: making the runtime for the first time takes minutes."""
    item.add_marker(pytest.mark.system)
    if item.path.stem in IN_TURN:
        item.add_marker(pytest.mark.machine)
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(1800))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last of all, and the machine's in turn."""
    places = {path: (1 + IN_TURN.index(path.stem) if path.stem in IN_TURN else 0) if path.parent == HERE else -1
              for path in {item.path for item in items}}  # fmt: skip
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the journals of the boxes that a failed test used."""
    report = yield
    if report.failed:
        item.config.stash[SPOILT] = True
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
        subprocess.run([str(ROOT / "packaging/build-deb.sh"), "--output", str(path)], check=True, timeout=600)
    return path


@pytest.fixture(scope="session")
def newer_deb(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a higher version, as if built with `--version`."""
    directory = tmp_path_factory.mktemp("deb")
    tree, path = directory / "tree", directory / "llm-appliance-newer.deb"
    subprocess.run(["dpkg-deb", "-R", str(deb), str(tree)], check=True, timeout=60)
    for name, old, new in (
        ("DEBIAN/control", r"^Version: .*", f"Version: {NEWER}"),
        ("usr/lib/llm-appliance/appliance/__init__.py", r"^__version__ = .*", f'__version__ = "{NEWER}"'),
    ):
        text, count = re.subn(old, new, (tree / name).read_text(), flags=re.MULTILINE)
        assert count == 1, name
        (tree / name).write_text(text)
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", str(tree), str(path)], check=True, timeout=60)
    return path


class Machines:
    """The machine of the tests; another one after a failure, which may have left it in any state."""

    def __init__(self, config: pytest.Config, deb: Path) -> None:
        self._config = config
        self._deb = deb
        self._box: Box | None = None

    def serving(self) -> Appliance:
        if self._box is None or self._config.stash.get(SPOILT, False):
            self.close()
            self._config.stash[SPOILT] = False
            layer = layers.installed_layer("bookworm", self._deb)
            self._box = Box.start("bookworm", [layer], network="private")
        machine = Appliance(self._box)
        machine.wait_ready()
        return machine

    def close(self) -> None:
        if self._box is not None:
            self._box.remove()
        self._box = None


@pytest.fixture(scope="session")
def machines(request: pytest.FixtureRequest, deb: Path) -> Iterator[Machines]:
    made = Machines(request.config, deb)
    yield made
    made.close()


@pytest.fixture(scope="module")
def appliance(machines: Machines) -> Appliance:
    """A machine that was installed, powered off and has booted again; serving.

    $LLM_APPLIANCE_BOX names a running box to be used instead, while tests are being written.
    """
    given = os.environ.get("LLM_APPLIANCE_BOX")
    return Appliance(Box.attach(given)) if given else machines.serving()
