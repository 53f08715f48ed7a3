"""The generator as systemd runs it: a process of its own, with directories, an exit status, and a clock."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from appliance.config import source

ROOT = Path(__file__).resolve().parents[3]
# As the installed command: isolated, without site-packages.
SHIM = "import sys; sys.path[:0] = {paths!r}; from appliance.__main__ import main; sys.exit(main(sys.argv[1:]))"
PATHS = [str(ROOT), str(Path(source.tomllib.__file__ or "").parents[1])]
COMMAND = [sys.executable, "-I", "-S", "-c", SHIM.format(paths=PATHS), "generator"]
EIGHT = "".join(
    f'[[engine]]\nname = "e{n}"\nmodel = "org/model-{n}"\ngpus = [{n}]\n[engine.vllm]\nmax_model_len = 8192\n'
    for n in range(8)
)
WANTS = "llm-appliance.target.wants"


class Host:
    """A configuration directory and the three directories that systemd hands over, emptied before each run."""

    def __init__(self, root: Path) -> None:
        self.config = root / "etc/config.toml"
        self.config.parent.mkdir()
        self.root = root

    def generate(self, *prefix: str) -> subprocess.CompletedProcess[str]:
        directories = [self.root / name for name in ("normal", "early", "late")]
        for directory in directories:
            subprocess.run(["rm", "-rf", directory], check=True)
            directory.mkdir()
        arguments = [*prefix, *COMMAND, *map(str, directories), "--config", str(self.config)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)

    @property
    def written(self) -> set[str]:
        return {
            str(path.relative_to(self.root / "normal")) for path in (self.root / "normal").rglob("*.conf")
        } | self.wanted

    @property
    def wanted(self) -> set[str]:
        directory = self.root / "normal" / WANTS
        return {path.name for path in directory.iterdir()} if directory.exists() else set()

    def keep_as_last_good(self) -> None:
        (self.config.parent / "last-good.toml").write_bytes(source.snapshot(str(self.config)))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_good_file(host: Host) -> None:
    host.config.write_text('[gateway]\nlisten = ["127.0.0.1:9999"]\n[[engine]]\nname = "chat"\nreplicas = 2\n')
    done = host.generate()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert host.wanted == {"llm-engine@chat.service", "llm-engine@chat-2.service"}
    assert os.readlink(host.root / "normal" / WANTS / "llm-engine@chat.service").endswith("/llm-engine@.service")
    assert "ListenStream=127.0.0.1:9999" in (host.root / "normal/llm-gateway.socket.d/50-appliance.conf").read_text()
    assert list((host.root / "early").iterdir()) == list((host.root / "late").iterdir()) == []


def test_a_bad_file_leaves_the_units_of_the_last_good_one(host: Host) -> None:
    host.config.write_text('[[engine]]\nname = "chat"\n')
    host.keep_as_last_good()
    host.generate()
    before = host.written
    host.config.write_text('[[engine]]\nname = "chat"\nreplicas = "many"\n')
    done = host.generate()
    assert done.returncode == 0
    assert host.written == before != set()
    assert "config.toml:3: engine.replicas" in done.stderr
    assert "last good" in done.stderr


@pytest.mark.parametrize("text", ["nonsense = 1\n", "[[engine", "\x00", None])
def test_a_bad_file_without_a_last_good_one_makes_no_engines(host: Host, text: str | None) -> None:
    if text is not None:
        host.config.write_text(text)
    done = host.generate()
    assert (done.returncode, host.written) == (0, set())
    assert str(host.config) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_removed_engine_is_gone(host: Host) -> None:
    host.config.write_text('[[engine]]\nname = "a"\n[[engine]]\nname = "b"\n')
    host.generate()
    assert host.wanted == {"llm-engine@a.service", "llm-engine@b.service"}
    host.config.write_text('[[engine]]\nname = "b"\n')
    host.generate()
    assert host.written == {"llm-engine@b.service", "llm-engine@b.service.d/50-appliance.conf"}


def test_wrong_arguments_and_a_missing_directory_do_not_fail_the_boot(host: Host) -> None:
    host.config.write_text("")
    for arguments in ([], ["/nonexistent/normal", "/x", "/y"], ["/x", "/y", "/z", "--config"]):
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0
        assert "Traceback" not in done.stderr


def test_a_read_only_tree(host: Host) -> None:
    """Newer systemd shows generators a tree that is read-only but for their output."""
    read_only = 'mount --make-rprivate / && mount -o remount,bind,ro / && ! touch /usr/.probe 2>/dev/null && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", read_only, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody remount a tree read-only")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as normal:  # a mount of its own stays writable
        host.config.write_text('[[engine]]\nname = "chat"\n')
        arguments = [*inside, *COMMAND, normal, normal, normal, "--config", str(host.config)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert os.listdir(f"{normal}/{WANTS}") == ["llm-engine@chat.service"]
        # And where even the output cannot be written.
        arguments = [*inside, *COMMAND, "/usr/lib", "/usr/lib", "/usr/lib", "--config", str(host.config)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0
        assert "read-only" in done.stderr


def test_it_is_quick(host: Host) -> None:
    """In processor time, which other programs hardly lengthen: about 70 ms for eight engines, the budget is 150 ms."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    host.config.write_text(EIGHT)
    costs = []
    for _ in range(6):
        before = spent()
        host.generate()
        costs.append(spent() - before)
    assert len(host.wanted) == 8
    assert min(costs) < 0.3  # a processor whose cores are shared is half as fast


def test_it_loads_nothing_that_costs() -> None:
    code = (
        f"import sys; sys.path[:0] = {PATHS!r}; before = set(sys.modules); "
        "from appliance.generator import main; from appliance.config import source; "
        "from appliance.units import render; "
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"argparse", "asyncio", "socket", "subprocess", "logging", "aiohttp", "difflib", "http", "email"}
    assert not heavy & set(done.stdout.split())
