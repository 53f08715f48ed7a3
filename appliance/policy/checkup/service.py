"""The appliance's own parts: units as they were packaged, engines as configured, what the supervisor has seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance import names
from appliance.config.model import Config
from appliance.hostfacts import EngineState, HostFacts, NotKnown, UnitFacts
from appliance.quantity import UNKNOWN, format_duration, format_size, parse_duration

from .check import Said, good, listed, skipped, unknown, warning, wrong
from .driver import has_gpus

SLOW_ANSWER = 1.0  # seconds: the gateway answers in milliseconds unless its loop is blocked
STALE_FLEET = 60.0
RECENT_S = 86400.0
LEAST_STOP_S = 45.0  # vLLM's workers and the driver take so long; a SIGKILL in between can wedge it
SYSTEM_UID = 1000  # from here on logind removes shared memory of users that log out
_UNCONFINED = "~"


def gateway(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether it answers, and at once."""
    if isinstance(facts.gateway, NotKnown):
        return [wrong(facts.gateway.why, "systemctl status llm-gateway")]
    found = facts.gateway
    if found.took > SLOW_ANSWER:
        return [
            warning(
                f"answers after {format_duration(found.took)}: it or the machine is overloaded",
                "systemd-cgtop; llm-appliance status",
            )
        ]
    if found.state == "serving":
        return [good("answers; an engine serves")]
    return [warning(f"answers, and is {found.state}", "llm-appliance status")]


def units(facts: HostFacts, config: Config) -> Iterable[Said]:
    """What has failed, is masked, or was edited without systemd having read it."""
    if not facts.systemd:
        return [skipped("systemd does not run here")]
    if isinstance(facts.units, NotKnown):
        return [unknown(facts.units)]
    ours = [unit for unit in facts.units if unit.name.startswith("llm-")]
    if not ours:
        return [skipped("the package is not installed: systemd knows no unit llm-*")]
    said = []
    for unit in ours:
        if unit.properties.get("ActiveState") == "failed":
            said.append(
                wrong(f"{unit.name} has failed ({unit.properties.get('Result')})", f"journalctl -x -u {unit.name}")
            )
        if unit.properties.get("LoadState") in ("masked", "bad-setting", "error"):
            state = unit.properties["LoadState"]
            said.append(wrong(f"{unit.name} is {state}", f"systemctl unmask {unit.name}; systemctl cat {unit.name}"))
    said += _unread([unit for unit in ours if unit.properties.get("NeedDaemonReload") == "yes"])
    active = sum(unit.properties.get("ActiveState") == "active" for unit in ours)
    return said or [good(f"{active} active, none failed")]


def _unread(stale: Iterable[UnitFacts]) -> Iterator[Said]:
    """Units that systemd would make otherwise today; for those that are made of the configuration that is `apply`'s."""
    waiting: dict[str, list[str]] = {}
    for unit in stale:
        source = unit.properties.get("SourcePath", "")
        if source and unit.edited == (source,):
            waiting.setdefault(source, []).append(unit.name)
        else:
            yield warning(f"{unit.name} was edited, and systemd has not read it", "systemctl daemon-reload")
    for source, units in waiting.items():
        yield warning(f"{source} was edited and is not applied: {listed(units)} as before", "llm-appliance apply")


def overrides(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Units that somebody hardened or changed: drop-ins that break CUDA, the gateway or restarts."""
    if isinstance(facts.units, NotKnown) or not facts.units:
        return []
    found = [said for unit in facts.units if unit.name.startswith("llm-") for said in _broken(unit, facts)]
    theirs = [place for unit in facts.units if unit.name.startswith("llm-") for place in _foreign(unit)]
    if found:
        return found
    return [good(f"drop-ins of the operator's, harmless: {listed(theirs)}" if theirs else "units as packaged")]


def _foreign(unit: UnitFacts) -> list[str]:
    places = unit.properties.get("DropInPaths", "").split()
    if unit.properties.get("FragmentPath", "").startswith("/etc/"):
        places.append(unit.properties["FragmentPath"])
    return [place for place in places if not place.startswith(names.GENERATED)]


def _broken(unit: UnitFacts, facts: HostFacts) -> Iterator[Said]:
    edit = f"systemctl edit {unit.name}; remove that line"
    properties = unit.properties
    if properties.get("KillMode") == "process":
        yield wrong(f"{unit.name}: KillMode=process leaves workers behind that keep GPU memory", edit)
    if not unit.name.startswith("llm-engine@"):
        return
    rows = (
        ("PrivateDevices", ("yes",), "hides the GPUs", has_gpus(facts)),
        (
            "DevicePolicy",
            ("closed", "strict"),
            "hides the GPUs, or cuts them off at the next daemon-reload",
            has_gpus(facts),
        ),
        ("MemoryDenyWriteExecute", ("yes",), "ends the engine at its first request", True),
        ("ProcSubset", ("pid",), "hides /proc/meminfo, which vLLM reads", True),
        ("PrivateNetwork", ("yes",), "keeps ranks from meeting on loopback", True),
    )
    for name, bad, meaning, matters in rows:
        if matters and properties.get(name) in bad:
            yield wrong(f"{unit.name}: {name}={properties[name]} {meaning}", edit)
    if has_gpus(facts) and properties.get("DeviceAllow"):
        yield warning(f"{unit.name}: DeviceAllow= cuts the GPUs off at the next daemon-reload", edit)
    families = properties.get("RestrictAddressFamilies", "").split()
    if families and not families[0].startswith(_UNCONFINED) and "AF_UNIX" not in families:
        yield wrong(f"{unit.name}: RestrictAddressFamilies= leaves out AF_UNIX, which its own socket is", edit)
    yield from _policies(unit, edit)
    yield from _shm(unit, edit)


def _policies(unit: UnitFacts, edit: str) -> Iterator[Said]:
    """Restarts, watchdogs and limits that compete with the supervisor's, or with vLLM's own end."""
    if unit.properties.get("Restart") == "always":
        yield warning(f"{unit.name}: Restart=always undoes holds that the supervisor sets", edit)
    if unit.properties.get("WatchdogUSec", "0") not in ("", "0", "infinity"):
        yield warning(f"{unit.name}: WatchdogSec= ends an engine that reads a long prompt", edit)
    if unit.properties.get("LogRateLimitIntervalUSec", "0") not in ("", "0"):
        yield warning(f"{unit.name}: the journal drops lines of it when it says much, and with them the cause", edit)
    if unit.properties.get("OOMPolicy") == "kill":
        yield warning(f"{unit.name}: OOMPolicy=kill leaves the launcher no time for a verdict", edit)
    try:
        stop = parse_duration(unit.properties.get("TimeoutStopUSec", "").replace("min", "m") or "90s")
    except ValueError:
        return  # infinity
    if stop < LEAST_STOP_S:
        yield warning(
            f"{unit.name} is killed {format_duration(stop)} after it is asked to stop: the driver may not survive", edit
        )


def _shm(unit: UnitFacts, edit: str) -> Iterator[Said]:
    for name in ("ReadWritePaths", "NoExecPaths"):
        if "/dev/shm" in unit.properties.get(name, "").split():
            yield warning(f"{unit.name}: {name}=/dev/shm cancels its own /dev/shm: it uses the host's", edit)
    own = unit.properties.get("TemporaryFileSystem")
    if own is not None and "/dev/shm" not in own:
        yield warning(f"{unit.name} has no /dev/shm of its own: leftovers of crashes stay on the host", edit)


def memory_limits(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Limits of units that are smaller than what runs in them."""
    if isinstance(facts.units, NotKnown) or not facts.units:
        return []
    said = [one for unit in facts.units if unit.name.startswith("llm-") for one in _limit(unit, facts, config)]
    return said or [good("no unit was killed at its own limit")]


def _limit(unit: UnitFacts, facts: HostFacts, config: Config) -> Iterator[Said]:
    killed = unit.events.get("oom_kill", 0)
    if killed:
        yield warning(
            f"{unit.name} lost {killed} process{'es' * (killed != 1)} at its memory limit or with the machine's",
            "raise memory_max of the engine, or lower what it needs on the host",
        )
    instance = names.instance_of(unit.name)
    limit = unit.properties.get("MemoryMax", "")
    if instance is None or not limit.isdigit() or isinstance(facts.models, NotKnown):
        return
    engine = config.engine_of(instance)
    size = next((m.size for m in facts.models if engine is not None and engine.name in m.engines), UNKNOWN)
    if size is not UNKNOWN and int(limit) < size:
        yield warning(
            f"{unit.name} may use {format_size(int(limit))}, its model has {format_size(size)}: loading is slow",
            "raise memory_max of the engine, or leave it out",
        )


def applied(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether what runs is what the file says."""
    if isinstance(facts.fleet, NotKnown):
        return [unknown(facts.fleet)]
    stale = [each.name for each in facts.fleet.engines if each.stale]
    if stale:
        return [warning(f"{listed(stale)} runs with another configuration than the file's", "llm-appliance apply")]
    return [good("what runs is what the configuration says")]


def engines(facts: HostFacts, config: Config) -> Iterable[Said]:
    """What the supervisor says of the engines."""
    if isinstance(facts.fleet, NotKnown):
        return [unknown(facts.fleet)]
    found = facts.fleet
    if found.age is UNKNOWN:
        told = "the supervisor has said nothing yet: it does not run"
        return [wrong(told, "systemctl status llm-supervisor") if facts.installed else skipped(told)]
    said = []
    if found.age > STALE_FLEET:
        said.append(
            warning(
                f"the supervisor has said nothing for {format_duration(found.age)}", "systemctl status llm-supervisor"
            )
        )
    said += [one for each in found.engines if (one := _engine(each)) is not None]
    said += [
        warning(
            f"{each.engine}: {each.cause}, {each.count} time{'s' * (each.count != 1)} within a day",
            f"llm-appliance incidents; journalctl -x LLM_ENGINE={each.engine}",
        )
        for each in found.incidents
        if each.age < RECENT_S
    ]
    serving = sum(each.state == "serving" for each in found.engines)
    return said or [good(f"{serving} of {len(found.engines)} serve")]


def _engine(each: EngineState) -> Said | None:
    if each.state in ("held", "failed"):
        return wrong(
            f"{each.name} is {each.state}: {each.reason or each.cause}",
            f"llm-appliance incidents; llm-appliance resume {each.name} after mending",
        )
    return None


def runtime(facts: HostFacts, config: Config) -> Iterable[Said]:
    """vLLM's environment: complete, with its Python still there, built for what this machine has."""
    if not config.local_instances:
        return [skipped("every engine is elsewhere")]
    if isinstance(facts.runtime, NotKnown):
        return [unknown(facts.runtime)]
    found = facts.runtime
    if not found.name:
        say = warning if found.builder and found.builder != "failed" else wrong
        told = f"; llm-runtime: {found.builder} {found.message}".rstrip() if found.builder else ""
        return [say(f"there is no vLLM runtime{told}", "systemctl status llm-runtime; journalctl -u llm-runtime")]
    if not found.complete or not found.usable:
        why = "its Python is gone, as after an upgrade of the distribution" if found.complete else "it is unfinished"
        return [wrong(f"runtime {found.name}: {why}", "systemctl start llm-runtime builds it again")]
    loaded = not isinstance(facts.driver, NotKnown) and bool(facts.driver.loaded)
    if found.device == "cpu" and loaded and config.runtime.device != "cpu":
        return [
            warning(
                f"runtime {found.name} is for the CPU, and NVIDIA's driver is loaded: the GPUs are not used",
                "systemctl start llm-runtime builds the one for CUDA",
            )
        ]
    if found.builder == "failed":
        return [
            warning(
                f"runtime {found.name} is good; the builder has failed: {found.message}", "journalctl -u llm-runtime"
            )
        ]
    return [good(found.name)]


def models(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Whether each configured model is here and readable for the engines' user."""
    if isinstance(facts.models, NotKnown):
        return [unknown(facts.models)]
    if not facts.models:
        return [skipped("every engine is elsewhere")]
    said = []
    for model in facts.models:
        if model.standing != "ready":
            say = wrong if model.model.startswith("/") else warning
            who = listed(model.engines)
            said.append(
                say(f"{model.model} ({who}): {model.standing}", "llm-appliance models list; llm-appliance apply")
            )
    return said or [good(listed(f"{m.model} {_size(m.size)}".strip() for m in facts.models))]


def _size(size: object) -> str:
    return format_size(size) if isinstance(size, int) and size else ""


def users(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Our system users: there, and such that a logout removes nothing of theirs."""
    if not facts.installed:
        return [skipped("the package is not installed")]
    if isinstance(facts.accounts, NotKnown):
        return [unknown(facts.accounts)]
    there = {each.name: each for each in facts.accounts}
    missing = [
        name
        for name in (names.GATEWAY_USER, names.ENGINE_USER, names.SUPERVISOR_USER, names.RUNTIME_USER)
        if name not in there
    ]
    if missing:
        return [wrong(f"no user {listed(missing)}", "systemd-sysusers; dpkg-reconfigure llm-appliance")]
    people = [each.name for each in there.values() if each.uid >= SYSTEM_UID]
    if people:
        return [
            warning(
                f"{listed(people)} has the number of a person's user: a logout removes its shared memory",
                "give it a uid below 1000, or set RemoveIPC=no in logind.conf",
            )
        ]
    return [good("four system users")]


def journal(facts: HostFacts, config: Config) -> Iterable[Said]:
    """Causes are told there: it should outlive the reboot that a cause may ask for."""
    if not facts.systemd:
        return [skipped("systemd does not run here")]
    if isinstance(facts.journal, NotKnown):
        return [unknown(facts.journal)]
    if not facts.journal.kept:
        return [
            warning(
                "the journal is lost at a reboot", "mkdir -p /var/log/journal && systemctl restart systemd-journald"
            )
        ]
    return [good("kept over reboots")]
