"""What is in the package; its first minutes on both releases, what systemd says of its units; remove, purge."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box

from tests.support import layers
from tests.support.machine import CHAT, PARIS
from tests.support.waiting import wait_until
from tests.unit.packaging import test_units as units

ROOT = Path(__file__).resolve().parents[2]
LIB = "usr/lib/llm-appliance"
UNITS = [path.name for path in units.UNITS]


@pytest.fixture(scope="module")
def files(deb: Path) -> dict[str, str]:
    """Path -> mode and owner, as in `drwxr-xr-x root/root`; directories without their last slash."""
    listing = subprocess.run(["dpkg-deb", "-c", str(deb)], capture_output=True, text=True, check=True, timeout=60)
    found = {}
    for line in listing.stdout.splitlines():
        mode, owner, _, _, _, path = line.split(maxsplit=5)
        found[path.removeprefix("./").rstrip("/")] = f"{mode} {owner}"
    return found


def test_it_is_small(deb: Path) -> None:
    assert deb.stat().st_size < 6_000_000


def test_all_of_the_program_is_in_it_without_what_it_does_not_need(files: dict[str, str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "appliance"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    code = {path for path in tracked if not path.endswith(".md")}
    packed = {path.removeprefix(f"{LIB}/") for path in files if path.startswith(f"{LIB}/appliance/")}
    assert code - packed == set()
    assert not [path for path in files if "__pycache__" in path or path.endswith((".pyc", ".pyi", ".c", ".pyx"))]
    assert not [path for path in files if ".dist-info" in path or "/tests/" in path]


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_dependencies_for_each_python(files: dict[str, str], minor: int) -> None:
    site = f"{LIB}/site/cp3{minor}"
    for module in ("aiohttp", "uvloop", "orjson", "psutil", "sdnotify"):
        assert f"{site}/{module}/__init__.py" in files
    assert f"{site}/pynvml.py" in files
    assert f"{site}/uvloop/loop.cpython-3{minor}-x86_64-linux-gnu.so" in files
    assert (f"{site}/tomli/__init__.py" in files) == (minor == 10)


def test_units_and_what_goes_with_them_have_their_places(files: dict[str, str]) -> None:
    for unit in UNITS:
        assert f"usr/lib/systemd/system/{unit}" in files
    for path in (
        "usr/lib/sysusers.d/llm-appliance.conf",
        "usr/lib/tmpfiles.d/llm-appliance.conf",
        "usr/lib/systemd/catalog/llm-appliance.catalog",
        "etc/llm-appliance/config.toml",
        "etc/llm-appliance/config.d",
        "usr/share/doc/llm-appliance/examples/config.toml",
        "usr/share/doc/llm-appliance/examples/nginx.conf",
        "usr/share/doc/llm-appliance/examples/Caddyfile",
        "usr/share/doc/llm-appliance/README.md",
        "usr/share/doc/llm-appliance/README.zh-CN.md",
        "usr/share/man/man1/llm-appliance.1.gz",
        "usr/share/bash-completion/completions/llm-appliance",
        "usr/share/zsh/vendor-completions/_llm-appliance",
    ):
        assert path in files
    for program in ("usr/bin/llm-appliance", "usr/lib/systemd/system-generators/llm-appliance-generator"):
        assert files[program] == "-rwxr-xr-x root/root"
    assert not [path for path in files if path.startswith("lib/")]


def test_modes_and_owners(files: dict[str, str]) -> None:
    assert set(files.values()) <= {"drwxr-xr-x root/root", "-rw-r--r-- root/root", "-rwxr-xr-x root/root"}


@pytest.mark.full
def test_the_same_tree_gives_the_same_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy: nobody edits it between the two
    for part in ("appliance", "packaging", "systemd", "etc"):
        shutil.copytree(ROOT / part, tree / part)
    shutil.copy2(ROOT / "CHANGELOG.md", tree)
    made = [tmp_path / name for name in ("one.deb", "two.deb")]
    for path in made:
        subprocess.run([str(tree / "packaging/build-deb.sh"), "--output", str(path)], check=True, timeout=300)
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def box(request: pytest.FixtureRequest, deb: Path) -> Iterator[Box]:
    """A machine with the package just installed; no runtime, and none to be had."""
    with Box.start(request.param, network="host") as box:
        layers.download(box, deb)
        box.stop()
        box.boot(network="private")
        layers.install(box, deb)
        yield box


def test_a_first_installation_answers_at_once_and_honestly(box: Box) -> None:
    """Without a network, so without a runtime: the gateway says within seconds what is going on."""
    wait_until(lambda: box.sh("curl -s -m 2 http://127.0.0.1:8080/healthz", check=False).status == 0, 10, "an answer")
    assert box.sh("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8080/readyz").out == "503"
    key = json.loads(box.sh("llm-appliance keys create first --json").out)["key"]
    body = json.dumps({"model": CHAT, "messages": [{"role": "user", "content": PARIS}]})
    ask = f"curl -s -i -m 20 -H 'Authorization: Bearer {key}' -d '{body}' http://127.0.0.1:8080/v1/chat/completions"
    answer = box.sh(ask).out
    assert " 503 " in answer.splitlines()[0], answer
    assert "engine_starting" in answer
    assert "retry-after:" in answer.lower()
    for unit in ("llm-gateway.service", "llm-supervisor.service", "llm-config-check.path", "llm-appliance.target"):
        assert box.sh(f"systemctl is-active {unit}", check=False).out.strip() == "active", unit
        assert box.sh(f"systemctl is-enabled {unit}", check=False).out.strip() == "enabled", unit


def test_systemd_has_nothing_to_say_about_the_units(box: Box) -> None:
    paths = " ".join(f"/usr/lib/systemd/system/{unit}" for unit in UNITS)
    said = box.sh(f"systemd-analyze verify --man=no {paths}").out
    assert [line for line in said.splitlines() if "llm-" in line] == []


@pytest.mark.parametrize("name", units.THRESHOLDS)
def test_exposure(box: Box, name: str) -> None:
    unit = f"{name}.service" if "@" not in name else f"{name}x.service"
    box.sh(f"systemd-analyze security --offline=true --no-pager --threshold={units.THRESHOLDS[name]} {unit}")


def test_python_is_compiled_at_the_installation(box: Box) -> None:
    assert box.sh(f"ls /{LIB}/appliance/__pycache__/__main__.cpython-*.pyc").out.count("\n") == 1
    assert box.sh(f"ls -d /{LIB}/site/cp3*/aiohttp/__pycache__").out.count("\n") == 1


def test_the_catalogue_knows_our_messages(box: Box) -> None:
    assert "llm-appliance" in box.sh("journalctl --list-catalog").out


def test_the_generator_is_quick_and_survives_a_bad_file(box: Box) -> None:
    generate = "/usr/lib/systemd/system-generators/llm-appliance-generator"
    box.sh(f"mkdir -p /tmp/g && {generate} /tmp/g /tmp/g /tmp/g")
    assert "llm-engine@default.service" in box.sh("ls /tmp/g/llm-appliance.target.wants").out
    box.write("/etc/llm-appliance/config.d/90-bad.toml", "[[engine]\n")
    box.sh(f"mkdir -p /tmp/b && {generate} /tmp/b /tmp/b /tmp/b && systemctl daemon-reload")
    checked = box.sh("systemctl start llm-config-check.service", check=False)
    assert checked.status != 0
    assert "90-bad.toml" in box.journal("-u llm-config-check.service")
    box.sh("rm /etc/llm-appliance/config.d/90-bad.toml; systemctl daemon-reload")
    # A check of the edit before may be running, and a start joins it.
    green = "systemctl start llm-config-check"
    wait_until(lambda: box.sh(green, check=False).status == 0, 30, "the check is green again")


def test_an_edit_alone_makes_the_check_red_and_green_again(box: Box) -> None:
    """Written in place, replaced by rename as editors do, written again and again; the last edit counts."""
    file, dropin = "/etc/llm-appliance/config.toml", "/etc/llm-appliance/config.d/90-bad.toml"
    bad, good = "echo '[[engine]'", "echo '# good'"

    def is_soon(state: str, edit: str) -> None:
        box.sh(edit)
        ask = "systemctl is-failed llm-config-check.service"
        wait_until(lambda: box.sh(ask, check=False).out.strip() == state, 30, f"{state} after: {edit}")

    def checks() -> int:
        return box.journal("-b -u llm-config-check.service").count("Starting ")

    before = box.read(file)
    is_soon("failed", f"{bad} > {file}")
    assert "config.toml" in box.journal("-u llm-config-check.service -n 20")
    is_soon("inactive", f"mv {file} {file}~; {good} > {file}; rm {file}~")
    is_soon("failed", f"{bad} > {file}.new; mv {file}.new {file}")
    many, began = checks(), time.monotonic()
    is_soon("inactive", f"for n in $(seq 300); do {bad} > {file}.new; mv {file}.new {file}; done; {good} > {file}")
    assert checks() - many <= time.monotonic() - began + 1  # each after a pause of a second
    is_soon("failed", f"{bad} > {dropin}")
    is_soon("inactive", f"rm {dropin}")
    is_soon("failed", f"rm {file}; sleep 1.2; {bad} > {file}")
    is_soon("inactive", f"{good} > {file}")
    assert box.sh("systemctl is-active llm-config-check.path").out.strip() == "active"
    box.write(file, before)


def test_an_address_of_another_program_is_told_and_refused_by_apply(box: Box) -> None:
    dropin = "/etc/llm-appliance/config.d/90-port.toml"
    box.sh("systemd-run --unit=other python3 -m http.server --bind 127.0.0.1 8090")
    wait_until(lambda: box.sh("ss -Hltn sport = 8090").out.strip() != "", 20, "the port taken")
    main = "systemctl show -p MainPID --value llm-gateway"
    pid = box.sh(main).out
    box.write(dropin, '[gateway]\nlisten = ["127.0.0.1:8090"]\n')
    found = json.loads(box.sh("llm-appliance doctor --json", check=False).out)
    told = [one["evidence"] for one in found if one["name"] == "ports" and one["verdict"] == "fail"]
    assert told and told[0].startswith("127.0.0.1:8090 is taken by python3 (pid "), told
    for verb in ("apply --dry-run", "apply --yes"):
        done = box.sh(f"llm-appliance {verb}", check=False)
        assert done.status == 1
        assert told[0] in done.out and "change [gateway] listen" in done.out
    assert box.sh(main).out == pid
    # What the gateway has itself, and gives up; with the gateway away systemd holds it.
    box.write(dropin, '[gateway]\nlisten = ["0.0.0.0:8080"]\n')
    assert box.sh("llm-appliance apply --dry-run", check=False).status == 0
    box.sh("systemctl stop llm-gateway.service")
    assert box.sh("llm-appliance apply --dry-run", check=False).status == 0
    box.sh(f"rm {dropin}; systemctl stop other; systemctl start llm-gateway.service")
    found = json.loads(box.sh("llm-appliance doctor --json", check=False).out)
    assert [one["verdict"] for one in found if one["name"] == "ports"] == ["ok"]


def test_a_taken_port_is_reported_and_taken_back(box: Box) -> None:
    box.sh("systemctl stop llm-gateway.socket llm-gateway-admin.socket llm-gateway.service")
    box.sh("systemd-run --unit=other python3 -m http.server --bind 127.0.0.1 8080")
    wait_until(lambda: box.sh("ss -Hltn sport = 8080").out.strip() != "", 20, "the port taken")
    box.sh("systemctl start --no-block llm-gateway.service llm-gateway-admin.socket")
    wait_until(lambda: "127.0.0.1:8080 is taken" in box.journal("-u llm-gateway"), 20, "the message")
    box.sh("curl -s -m 1 http://127.0.0.1:8081/healthz", check=False)  # a call waits at the other listener
    lines = box.journal("-u llm-gateway -u llm-gateway.socket -u llm-gateway-admin.socket -n 500")
    assert lines.count("Address already in use") < 40
    box.sh("systemctl stop other")
    wait_until(lambda: box.sh("curl -sf -m 2 http://127.0.0.1:8080/healthz", check=False).status == 0, 20, "an answer")
    wait_until(lambda: box.sh("curl -sf -m 2 http://127.0.0.1:8081/healthz", check=False).status == 0, 20, "the admin")


def test_removed_installed_again_purged(box: Box, deb: Path) -> None:
    state = "/var/lib/llm-appliance"
    box.write("/etc/llm-appliance/config.toml", "# an operator's\n")
    box.write(f"{state}/models/huggingface/some/model/weights", "x")
    box.write(f"{state}/models/builtin/small/weights", "x")
    box.sh("apt-get remove -y llm-appliance", timeout=180)
    assert box.sh("find /run/llm-appliance /usr/lib/llm-appliance", check=False).status == 1
    running = box.sh("systemctl list-units --plain --no-legend --state=active,activating,failed 'llm-*'").out
    assert running.strip() == ""

    layers.install(box, deb)
    assert box.read("/etc/llm-appliance/config.toml") == "# an operator's\n"
    for unit in ("llm-appliance.target", "llm-gateway.socket", "llm-gateway-admin.socket", "llm-unitctl.socket"):
        assert box.sh(f"systemctl is-active {unit}", check=False).out.strip() == "active", unit

    # The builder would write where the next line deletes: it tries again, and the supervisor has it started anew.
    box.sh("systemctl stop llm-supervisor llm-unitctl.socket 'llm-unitctl@*'; systemctl stop llm-runtime")
    box.sh(f"rm -rf {state}/runtimes {state}/incidents")  # parts that are missing
    said = box.sh("apt-get purge -y llm-appliance", timeout=180).out
    told = re.findall(r"deleting (\S+) \(\d+K\)", said)
    assert told[0] == f"{state}/models/builtin" and "/var/log/llm-appliance" in told, said
    assert box.sh("systemctl list-units --all --plain --no-legend 'llm-*'").out.strip() == ""
    left = box.sh("find /etc /var /run /usr -xdev -path '*llm-*' -not -path '/var/lib/dpkg/*' -type f").out.split()
    assert left == [f"{state}/models/huggingface/some/model/weights"]
