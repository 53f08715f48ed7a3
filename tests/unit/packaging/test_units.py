"""Unit files as systemd reads them, and against the names that the code uses."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from appliance import __main__ as program
from appliance import names
from appliance.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[3]
SUFFIXES = (".service", ".socket", ".target", ".path")
UNITS = sorted(path for path in (ROOT / "systemd").iterdir() if path.suffix in SUFFIXES)
# Tenths of systemd's exposure level; the sandbox may get tighter, not looser.
THRESHOLDS = {
    "llm-gateway": 15,
    "llm-supervisor": 20,
    "llm-engine@": 20,
    "llm-runtime": 15,
    "llm-unitctl@": 10,
    "llm-config-check": 15,
    "llm-config-edited": 10,
}
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def settings(name: str) -> dict[str, list[str]]:
    """Key -> its values in the order of the file."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "systemd" / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@needs_systemd
def test_systemd_has_nothing_to_say_about_them(tmp_path: Path) -> None:
    for unit in UNITS:  # the program is not installed here; that it exists is another test's matter
        (tmp_path / unit.name).write_text(unit.read_text().replace("/usr/bin/llm-appliance", "/bin/true"))
    copies = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "llm-" in line]
    assert (done.returncode, ours) == (0, [])


@needs_systemd
@pytest.mark.parametrize("name", THRESHOLDS)
def test_exposure_stays_below_its_threshold(name: str) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={THRESHOLDS[name]}"]
    done = subprocess.run(
        [*command, f"{name}.service"],
        cwd=ROOT / "systemd",
        env={"SYSTEMD_UNIT_PATH": f"{ROOT}/systemd:", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-600:] + done.stderr


def test_every_service_has_a_threshold() -> None:
    assert {unit.stem for unit in UNITS if unit.suffix == ".service"} == set(THRESHOLDS)


def test_units_run_verbs_that_exist() -> None:
    verbs = {*program.PROCESSES, *VERBS}
    for unit in UNITS:
        for line in settings(unit.name).get("ExecStart", []):
            binary, verb, *_ = line.split()
            if (unit.name, line) == ("llm-config-edited.service", "/bin/sleep 1"):
                continue
            assert binary == "/usr/bin/llm-appliance"
            assert verb in verbs, unit.name


def test_units_have_the_names_of_the_contract() -> None:
    contract = {
        names.TARGET,
        names.GATEWAY_UNIT,
        names.GATEWAY_SOCKET_UNIT,
        names.GATEWAY_ADMIN_SOCKET_UNIT,
        names.SUPERVISOR_UNIT,
        names.RUNTIME_UNIT,
        names.CONFIG_CHECK_UNIT,
        names.CONFIG_CHECK_PATH_UNIT,
        names.UNITCTL_SOCKET_UNIT,
        "llm-engine@.service",
    }
    assert contract == {unit.name for unit in UNITS} - {"llm-unitctl@.service", "llm-config-edited.service"}


def test_every_part_stops_with_the_target() -> None:
    for unit in UNITS:
        if unit.name not in (names.TARGET, "llm-unitctl@.service"):
            assert settings(unit.name)["PartOf"] == [names.TARGET], unit.name


def test_what_is_wanted_is_ordered_so_that_nobody_waits_for_a_model() -> None:
    for slow in ("llm-engine@.service", names.RUNTIME_UNIT):
        assert names.TARGET in settings(slow)["After"][0].split()


def test_the_engine_unit_says_what_the_code_relies_on() -> None:
    engine = settings("llm-engine@.service")
    assert engine["ConditionPathExists"] == [
        f"{names.CURRENT_RUNTIME}/{names.RUNTIME_COMPLETE}",
        f"!{names.HOLDS}/%i",
    ]
    assert engine["RestartPreventExitStatus"] == [str(names.LAUNCHER_CONFIG)]
    assert engine["BindPaths"] == [f"-{names.engine_directory('%i')}"]
    assert engine["CacheDirectory"] == [f"{names.CACHE.removeprefix('/var/cache/')}/%i"]
    directory = f"/proc/1/root{names.engine_directory('%i')}"
    before = engine["ExecStartPre"]
    assert before[0].endswith(f"install -d -m 2750 -o root -g {names.GROUP} {directory}")
    assert sum(line.endswith(f"-o {names.ENGINE_USER} -g {names.GROUP} {directory}") for line in before) == 1
    copied = f"/proc/1/root{names.RUNGS}/%i.json /proc/1/root{names.engine_rung('%i')}"
    assert [line for line in before if line.startswith("-+") and line.endswith(copied)]
    assert "Group" not in engine
    assert "SupplementaryGroups" not in engine


@pytest.mark.parametrize("rung", [True, False])
@pytest.mark.parametrize("left", ["launcher", "rung.json"])
@pytest.mark.parametrize("to", ["directory", "file", "nothing"])
def test_root_follows_no_link_that_an_engine_left(tmp_path: Path, rung: bool, left: str, to: str) -> None:
    """The set-up runs as root in a directory of the engine's, which may have put anything there in its last run."""
    own, rungs = (tmp_path / f"{path}".lstrip("/") for path in (names.engine_directory("chat"), names.RUNGS))
    for directory in (own, rungs, tmp_path / "etc/directory"):
        directory.mkdir(parents=True)
    (tmp_path / "etc/file").write_text("precious")
    if rung:
        (rungs / "chat.json").write_text("{}")
    (own / left).symlink_to(tmp_path / "etc" / to)
    before = seen(tmp_path / "etc")
    for line in settings("llm-engine@.service")["ExecStartPre"]:
        if names.ENGINES_RUN in line:
            set_up(line, "chat", tmp_path)
    assert seen(tmp_path / "etc") == before
    assert stat.S_IMODE((own / "launcher").lstat().st_mode) == stat.S_IMODE(own.lstat().st_mode) == 0o2750
    assert (own / "launcher").is_dir() and not (own / "launcher").is_symlink()
    there = own / "rung.json"
    assert there.is_file() is rung and not there.is_symlink()


@pytest.mark.parametrize("planted", ["link", "pipe", "directory", "large"])
def test_root_reads_nothing_for_the_supervisor_that_it_may_not_read(tmp_path: Path, planted: str) -> None:
    """What it lays down for an engine's start is copied by root to where the supervisor and the gateway may read it."""
    own, rungs = (tmp_path / path.lstrip("/") for path in (names.engine_directory("chat"), names.RUNGS))
    for directory in (own, rungs, tmp_path / "etc"):
        directory.mkdir(parents=True)
    (tmp_path / "etc/shadow").write_text("secret")
    rung = rungs / "chat.json"
    if planted == "link":
        rung.symlink_to(tmp_path / "etc/shadow")
    elif planted == "pipe":
        os.mkfifo(rung)
    elif planted == "directory":
        rung.mkdir()
    else:
        rung.write_bytes(b"x" * (8 << 20))
    (line,) = (each for each in settings("llm-engine@.service")["ExecStartPre"] if names.RUNGS in each)
    set_up(line, "chat", tmp_path)
    copy = own / "rung.json"
    assert not copy.exists() or (b"secret" not in copy.read_bytes() and copy.stat().st_size <= 1 << 20)


def test_a_rung_is_copied_for_the_engine_to_read(tmp_path: Path) -> None:
    own, rungs = (tmp_path / path.lstrip("/") for path in (names.engine_directory("chat"), names.RUNGS))
    for directory in (own, rungs):
        directory.mkdir(parents=True)
    (rungs / "chat.json").write_text("{}")
    (rungs / "chat.json").chmod(0o600)
    (line,) = (each for each in settings("llm-engine@.service")["ExecStartPre"] if names.RUNGS in each)
    set_up(line, "chat", tmp_path)
    copy = own / "rung.json"
    assert copy.read_text() == "{}" and stat.S_IMODE(copy.stat().st_mode) == 0o644


def set_up(line: str, instance: str, root: Path) -> None:
    """Run a line of ExecStartPre= below another root, with everything ours."""
    text = line.lstrip("-+").replace("%i", instance).replace("$$", "$").replace("/proc/1/root", str(root))
    text = re.sub(r"-o \S+ -g \S+", f"-o {os.getuid()} -g {os.getgid()}", text)
    done = subprocess.run(shlex.split(text), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 or line.startswith("-"), done.stderr


def seen(directory: Path) -> dict[str, object]:
    """What a directory and all that is in it look like."""
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_uid, path.read_bytes() if path.is_file() else b"")
        for path in (directory, *directory.rglob("*"))
    }


def test_the_engine_unit_leaves_out_what_breaks_vllm() -> None:
    engine = settings("llm-engine@.service")
    broken = {"MemoryDenyWriteExecute", "PrivateDevices", "DevicePolicy", "DeviceAllow", "ProcSubset", "WatchdogSec"}
    assert not broken & set(engine)
    assert not [value for value in engine["SystemCallFilter"] if "@resources" in value]
    # On the same path either would cancel the private /dev/shm without a word.
    assert not {"ReadWritePaths", "NoExecPaths"} & set(engine)


@pytest.mark.parametrize(
    ("unit", "user", "group"),
    [
        (names.GATEWAY_UNIT, names.GATEWAY_USER, names.GROUP),
        (names.SUPERVISOR_UNIT, names.SUPERVISOR_USER, names.GROUP),
        ("llm-engine@.service", names.ENGINE_USER, None),
        (names.RUNTIME_UNIT, names.RUNTIME_USER, None),
    ],
)
def test_users(unit: str, user: str, group: str | None) -> None:
    assert settings(unit)["User"] == [user]
    assert settings(unit).get("Group", [None]) == [group]


def test_directories_of_units_are_those_of_the_code() -> None:
    gateway, supervisor, runtime = (
        settings(unit) for unit in (names.GATEWAY_UNIT, names.SUPERVISOR_UNIT, names.RUNTIME_UNIT)
    )
    assert f"/run/{gateway['RuntimeDirectory'][0]}/control.sock" == names.GATEWAY_SOCKET
    assert f"/var/log/{gateway['LogsDirectory'][0]}" == names.AUDIT
    assert f"/var/lib/{gateway['StateDirectory'][0]}" == names.GATEWAY_STATE
    assert f"/run/{supervisor['RuntimeDirectory'][0]}/control.sock" == names.SUPERVISOR_SOCKET
    states = [f"/var/lib/{name}" for name in supervisor["StateDirectory"][0].split()]
    assert states == [names.SUPERVISOR_STATE, names.INCIDENTS]
    assert f"/run/{runtime['RuntimeDirectory'][0]}/state.json" == names.RUNTIME_STATE
    states = [f"/var/lib/{name}" for name in runtime["StateDirectory"][0].split()]
    assert states == [names.RUNTIMES, names.MODELS]
    assert settings(names.UNITCTL_SOCKET_UNIT)["ListenStream"] == [names.UNITCTL_SOCKET]


def test_both_listeners_reach_the_gateway_by_name() -> None:
    assert settings(names.GATEWAY_UNIT)["Sockets"] == [f"{names.GATEWAY_SOCKET_UNIT} {names.GATEWAY_ADMIN_SOCKET_UNIT}"]
    for unit, name in ((names.GATEWAY_SOCKET_UNIT, "public"), (names.GATEWAY_ADMIN_SOCKET_UNIT, "admin")):
        assert settings(unit)["FileDescriptorName"] == [name]


def test_an_edit_leads_to_a_check_by_way_of_a_pause() -> None:
    """While what a path unit starts runs, it watches nothing: a check started by it would miss edits."""
    path, pause = settings(names.CONFIG_CHECK_PATH_UNIT), settings("llm-config-edited.service")
    beside = Path(names.CONFIG_FILE).parent
    assert path["PathChanged"] == [names.CONFIG_FILE, str(beside / names.DROPIN_DIRECTORY)]
    assert path["Unit"] == ["llm-config-edited.service"]
    assert pause["After"] == pause["OnSuccess"] == [names.CONFIG_CHECK_UNIT]
    for unit in ("llm-config-edited.service", names.CONFIG_CHECK_UNIT):
        assert settings(unit)["StartLimitIntervalSec"] == ["0"]


def test_a_taken_port_cannot_make_a_loop() -> None:
    """With Requires= and no trigger limit, one waiting call would start the failed gateway again without end."""
    assert "Requires" not in settings(names.GATEWAY_UNIT)
    for unit in (names.GATEWAY_SOCKET_UNIT, names.GATEWAY_ADMIN_SOCKET_UNIT):
        assert not {"TriggerLimitIntervalSec", "TriggerLimitBurst"} & set(settings(unit))


def rows(name: str) -> list[list[str]]:
    lines = (ROOT / "systemd" / name).read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def test_sysusers_make_the_users_and_who_is_in_the_group() -> None:
    made = rows("llm-appliance.sysusers")
    users = {row[1] for row in made if row[0] == "u"}
    assert users == {names.GATEWAY_USER, names.ENGINE_USER, names.SUPERVISOR_USER, names.RUNTIME_USER}
    assert ["g", names.GROUP, "-"] in made
    members = {row[1] for row in made if row[0] == "m" and row[2] == names.GROUP}
    assert members == {names.GATEWAY_USER, names.SUPERVISOR_USER}


def test_tmpfiles_make_the_directories_of_the_code_with_the_owners_of_the_units() -> None:
    made = {row[1]: (row[3], row[4]) for row in rows("llm-appliance.tmpfiles")}
    assert made[names.RUNTIMES] == made[names.MODELS] == (names.RUNTIME_USER, names.RUNTIME_USER)
    for path in (names.SUPERVISOR_STATE, names.HOLDS, names.INCIDENTS):
        assert made[path] == (names.SUPERVISOR_USER, names.GROUP)
    assert made[names.AUDIT] == (names.GATEWAY_USER, names.GROUP)
    for path in (names.RUN, names.ENGINES_RUN, names.STATE, names.CACHE):
        assert made[path] == ("root", "root")
