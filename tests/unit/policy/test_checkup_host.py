"""Checks of the machine, of the network and of the appliance's parts, by what they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.config.model import Config, Engine, Gateway
from appliance.hostfacts import (
    Account,
    Clock,
    EngineState,
    Fleet,
    GatewaySays,
    Happened,
    HostFacts,
    Journal,
    Leftover,
    Limits,
    Listening,
    Memory,
    ModelFiles,
    Mount,
    NotKnown,
    Reached,
    Runtime,
    SharedMemory,
    Sockets,
    Stuck,
    UnitFacts,
)
from appliance.policy.finding import Verdict
from tests.support.checkups import BOX, DARK, FAIL, OK, SKIPPED, WARN, expect, findings

GIB = 1 << 30
MEMORY = Memory(total=64 * GIB, available=50 * GIB)
ENGINE = {"Id": "llm-engine@default.service", "LoadState": "loaded", "ActiveState": "active",
          "TemporaryFileSystem": "/run/llm-appliance /dev/shm:size=50%", "TimeoutStopUSec": "1min 15s"}  # fmt: skip
UNIT = UnitFacts(name="llm-engine@default.service", properties=ENGINE)
MOUNT = Mount(path="/var/lib/llm-appliance", purpose="state and runtimes", kind="ext4", size=99 * GIB, free=50 * GIB)
GATEWAY = Listening(host="127.0.0.1", port=8080, user="root")
ADMIN = replace(GATEWAY, port=8081)
HELD = tuple(replace(each, owner="systemd (pid 1)", pid=1) for each in (GATEWAY, ADMIN))
BOTH = ("127.0.0.1:8080", "127.0.0.1:8081")
SOCKETS = Sockets(listening=(GATEWAY, ADMIN), time_wait=3)
MODEL = ModelFiles(model="/m", path="/m", engines=("default",), standing="ready", size=10 * GIB)
RUNTIME = Runtime(name="0.32.0-cpu", device="cpu", complete=True, usable=True)
HUB = Reached(url="https://huggingface.co", purpose="the model hub", user="llm-runtime", service_user="llm-runtime",
              status=200, took=0.2)  # fmt: skip
PLAIN = replace(BOX, memory=MEMORY, sockets=SOCKETS, gateway=GatewaySays(state="serving", took=0.01), units=(UNIT,),
                fleet=Fleet(engines=(EngineState(name="default", state="serving"),), age=1.0), models=(MODEL,),
                shm=SharedMemory(size=32 * GIB, free=32 * GIB), mounts=(MOUNT,), reached=(HUB,),
                runtime=RUNTIME)  # fmt: skip


def unit(**properties: str) -> HostFacts:
    return replace(PLAIN, units=(replace(UNIT, properties={**ENGINE, **properties}),))


def stale(*edited: str) -> HostFacts:
    """systemd would read an engine's unit anew, for these files changed."""
    told = {**ENGINE, "NeedDaemonReload": "yes", "SourcePath": "/etc/llm-appliance/config.toml"}
    return replace(PLAIN, units=(replace(UNIT, properties=told, edited=edited),))


def events(**counters: int) -> HostFacts:
    return replace(PLAIN, units=(replace(UNIT, events=counters),))


def memory(**changes: object) -> HostFacts:
    return replace(PLAIN, memory=replace(MEMORY, **changes))


def mount(**changes: object) -> HostFacts:
    return replace(PLAIN, mounts=(replace(MOUNT, **changes),))


def listening(*there: Listening, answers: bool = True, applied: tuple[str, ...] = ()) -> HostFacts:
    says = PLAIN.gateway if answers else NotKnown("does not answer")
    return replace(PLAIN, sockets=replace(SOCKETS, listening=there, applied=applied), gateway=says)


def shm(*left: Leftover, size: int = 32 * GIB, systemd: bool = True) -> HostFacts:
    return replace(PLAIN, shm=SharedMemory(size=size, free=size, leftovers=left), systemd=systemd)


def engine(**changes: object) -> HostFacts:
    state = EngineState(name="default", **changes)  # type: ignore[arg-type]
    return replace(PLAIN, fleet=Fleet(engines=(state,), age=1.0))


def reached(**changes: object) -> HostFacts:
    return replace(PLAIN, reached=(replace(HUB, status=0, fault="no way", **changes),))


DIED = Happened(engine="default", cause="cuda-fault", age=60.0, count=3)
RANKS = listening(Listening(host="0.0.0.0", port=29500, user="llm-engine", owner="VLLM::Worker (pid 3)"))
NOBODY = replace(PLAIN, fleet=Fleet())


@pytest.mark.parametrize(
    ("name", "facts", "verdict", "words"),
    [
        ("memory", PLAIN, OK, ("50 GiB of 64 GiB",)),
        ("memory", memory(available=GIB), FAIL, ("systemd-cgtop",)),
        ("memory", memory(oom_kills=2), WARN, ("2 times since boot",)),
        ("memory", memory(stalled=30.0), WARN, ("30 %",)),
        ("memory", replace(PLAIN, models=(replace(MODEL, size=99 * GIB),)), WARN, ("larger than main memory",)),
        ("memory", replace(PLAIN, memory=NotKnown("no")), DARK, ("not known: no",)),
        ("disk-stalls", memory(disk_stalled=70.0), WARN, ("70 %",)),
        ("disk-stalls", memory(), DARK, ()),
        ("swap", PLAIN, OK, ("none",)),
        ("swap", memory(swap=8 * GIB, swap_used=7 * GIB), WARN, ("7 GiB",)),
        ("swap", memory(swap=8 * GIB, swap_used=1 << 20), OK, ()),
        ("shm", PLAIN, OK, ("32 GiB of 32 GiB",)),
        ("shm", shm(size=64 << 20), WARN, ("64 MiB",)),
        ("shm", shm(size=64 << 20, systemd=False), FAIL, ("remount,size=50%",)),
        ("shm", shm(Leftover(name="psm_1", owner="eve", size=2 * GIB)), WARN, ("1 leftovers", "rm /dev/shm/psm_1")),
        ("shm", shm(Leftover(name="psm_1", owner="eve", size=4096)), OK, ("1 leftover",)),
        ("limits", replace(PLAIN, limits=Limits(files=1024)), OK, ()),
        ("limits", replace(PLAIN, limits=Limits(files=1024), systemd=False), WARN, ("ulimit -n 65536",)),
        ("limits", replace(PLAIN, limits=Limits(files=1, files_each=1024)), WARN, ("fs.nr_open is 1024",)),
        ("limits", replace(PLAIN, limits=Limits(files=1, backlog=128)), WARN, ("net.core.somaxconn = 4096",)),
        ("limits", replace(PLAIN, limits=Limits(files=1, files_all=100, files_used=99)), WARN, ("99 of 100",)),
        ("limits", replace(unit(LimitNOFILE="1024"), limits=Limits(files=1)), FAIL, ("LimitNOFILE=1024",)),
        ("limits", replace(unit(LimitMEMLOCK="8388608"), limits=Limits(files=1)), WARN, ("LimitMEMLOCK",)),
        ("disk", PLAIN, OK, ("50 GiB free for state and runtimes",)),
        ("disk", mount(free=GIB), WARN, ("1 GiB free",)),
        ("disk", mount(free=1 << 20), FAIL, ("models list",)),
        ("disk", mount(inodes_free=5), WARN, ("5 files",)),
        ("disk", mount(free=GIB, purpose="temporary files"), OK, ()),
        ("disk", mount(free=1 << 20, purpose="temporary files"), WARN, ("1 MiB free for",)),
        ("disk", mount(read_only=True), FAIL, ("read-only",)),
        ("disk", mount(purpose="caches", noexec=True), FAIL, ("noexec",)),
        ("disk", mount(purpose="caches", kind="nfs4"), WARN, ("locks of compilers",)),
        ("disk", mount(purpose="caches", kind="beegfs"), WARN, ("locks of compilers",)),
        ("disk", mount(size=0, kind="nfs4", purpose="models"), DARK, ("does not answer",)),
        ("toolchain", PLAIN, SKIPPED, ("built for the CPU",)),
        ("clock", replace(PLAIN, clock=Clock(now=1e9, written=1e9, synchronised=True)), OK, ()),
        ("clock", replace(PLAIN, clock=Clock(now=1e9, written=1e9, synchronised=False)), WARN, ("set-ntp",)),
        ("clock", replace(PLAIN, clock=Clock(now=1e8, written=1e9)), FAIL, ("before this program",)),
        ("clock", replace(PLAIN, clock=Clock(now=1e9, written=1e9, synchronised=False), container="lxc"), SKIPPED, ()),
        ("clock", replace(PLAIN, clock=Clock(now=1e9, written=1e9)), DARK, ()),
        ("stuck", replace(PLAIN, stuck=(Stuck(pid=7, comm="python3", where="uvm_spin_loop"),)), FAIL, ("pid 7",)),
        ("stuck", replace(PLAIN, stuck=(Stuck(pid=7, comm="VLLM::Worker", where=""),)), FAIL, ("reboot",)),
        ("stuck", replace(PLAIN, stuck=(Stuck(pid=7, comm="cp", where="nfs_wait"),)), WARN, ("network file system",)),
        ("stuck", replace(PLAIN, stuck=()), OK, ()),
        ("ports", PLAIN, OK, ("127.0.0.1:8080, 127.0.0.1:8081: the gateway's",)),
        ("ports", listening(ADMIN), FAIL, ("does not listen on 127.0.0.1:8080",)),
        ("ports", listening(answers=False), DARK, ("does not run",)),
        ("ports", listening(replace(GATEWAY, owner="nginx (pid 9)", pid=9), ADMIN, answers=False), None,
         ("8080 is taken by nginx (pid 9)",)),
        ("ports", listening(*HELD, answers=False), OK, ()),
        ("ports", listening(GATEWAY, ADMIN, answers=False), DARK, ("user root",)),
        ("ports", listening(replace(GATEWAY, host="0.0.0.0"), ADMIN), OK, ()),
        ("ports", listening(replace(GATEWAY, ours=True, pid=5), ADMIN, applied=("127.0.0.1:8081",)), OK, ()),
        ("ports", listening(replace(GATEWAY, ours=False, owner="nginx (pid 9)", pid=9), *HELD[1:], applied=BOTH), FAIL,
         ("8080 is taken by nginx (pid 9)", "change [gateway] listen")),
        ("ports", listening(*HELD, applied=BOTH), OK, ()),
        ("ports", listening(*HELD, applied=("0.0.0.0:8080", "127.0.0.1:8081"), answers=False), OK, ()),
        ("ports", listening(*HELD, applied=("127.0.0.1:8080", "127.0.0.1:8082")), FAIL,
         ("8081 is taken by systemd (pid 1)", "list-sockets", "change [gateway] admin_listen")),
        ("ports", listening(replace(GATEWAY, host="::", ours=False, owner="go (pid 9)", pid=9), ADMIN), FAIL, ("go",)),
        ("ports", listening(GATEWAY, replace(ADMIN, user="eve"), applied=("127.0.0.1:8080",)), FAIL,
         ("8081 is taken by a program of user eve",)),
        ("exposure", PLAIN, OK, ()),
        ("exposure", replace(RANKS, units=PLAIN.units), FAIL, ("0.0.0.0:29500", "IPAddressDeny=")),
        ("exposure", replace(RANKS, units=unit(IPAddressDeny="0.0.0.0/0 ::/0").units), OK, ()),
        ("exposure", listening(Listening(host="::", port=80, user="eve", owner="vllm (pid 3)")), FAIL, ("pid 3",)),
        ("exposure", listening(Listening(host="127.0.0.1", port=80, user="eve", owner="vllm (pid 3)")), OK, ()),
        ("connections", PLAIN, OK, ()),
        ("connections", replace(PLAIN, sockets=replace(SOCKETS, time_wait=20000)), WARN, ("one SDK client",)),
        ("hub", PLAIN, OK, ("as llm-runtime",)),
        ("hub", replace(PLAIN, reached=()), SKIPPED, ()),
        ("hub", reached(kind="dns"), WARN, ("resolv.conf", "all that the engines need is here")),
        ("hub", replace(reached(kind="tls"), runtime=Runtime()), FAIL, ("ca_file",)),
        ("hub", replace(reached(kind="late"), models=(replace(MODEL, model="a/b", standing="not fetched yet"),)), FAIL,
         ("firewall",)),
        ("hub", replace(PLAIN, reached=(replace(HUB, user="root"),)), OK, ("llm-runtime was not asked for",)),
        ("proxy", PLAIN, SKIPPED, ("--through",)),
        ("proxy", listening(replace(GATEWAY, host="0.0.0.0", port=443, owner="nginx (pid 9)")), SKIPPED, (":443",)),
        ("gateway", PLAIN, OK, ()),
        ("gateway", replace(PLAIN, gateway=NotKnown("does not answer")), FAIL, ("systemctl status",)),
        ("gateway", replace(PLAIN, gateway=GatewaySays(state="serving", took=3.0)), WARN, ("after 3s",)),
        ("gateway", replace(PLAIN, gateway=GatewaySays(state="starting", took=0.1)), WARN, ("is starting",)),
        ("units", PLAIN, OK, ("1 active",)),
        ("units", unit(ActiveState="failed", Result="oom-kill"), FAIL, ("oom-kill", "journalctl -x")),
        ("units", unit(NeedDaemonReload="yes"), WARN, ("daemon-reload",)),
        ("units", stale("/etc/llm-appliance/config.toml"), WARN, ("not applied", "llm-appliance apply")),
        ("units", stale("/etc/llm-appliance/config.toml", "/etc/x.conf"), WARN, ("daemon-reload",)),
        ("units", stale("/etc/x.conf"), WARN, ("daemon-reload",)),
        ("units", unit(LoadState="masked"), FAIL, ("unmask",)),
        ("units", replace(PLAIN, units=()), SKIPPED, ("not installed",)),
        ("overrides", PLAIN, OK, ("as packaged",)),
        ("overrides", unit(DropInPaths="/run/systemd/generator/x.conf /etc/x.conf"), OK, ("/etc/x.conf",)),
        ("overrides", unit(PrivateDevices="yes"), FAIL, ("hides the GPUs",)),
        ("overrides", unit(DevicePolicy="closed"), FAIL, ("daemon-reload",)),
        ("overrides", unit(DeviceAllow="char-nvidia rw"), WARN, ("daemon-reload",)),
        ("overrides", unit(MemoryDenyWriteExecute="yes"), FAIL, ("first request",)),
        ("overrides", unit(KillMode="process"), FAIL, ("GPU memory",)),
        ("overrides", unit(RestrictAddressFamilies="AF_INET"), FAIL, ("AF_UNIX",)),
        ("overrides", unit(RestrictAddressFamilies="~AF_PACKET"), OK, ()),
        ("overrides", unit(Restart="always"), WARN, ("holds",)),
        ("overrides", unit(WatchdogUSec="30s"), WARN, ("long prompt",)),
        ("overrides", unit(LogRateLimitIntervalUSec="30s"), WARN, ("drops lines",)),
        ("overrides", unit(TimeoutStopUSec="10s"), WARN, ("may not survive",)),
        ("overrides", unit(TimeoutStopUSec="infinity"), OK, ()),
        ("overrides", unit(ReadWritePaths="/dev/shm"), WARN, ("cancels",)),
        ("overrides", unit(TemporaryFileSystem="/run/llm-appliance"), WARN, ("leftovers",)),
        ("memory-max", PLAIN, OK, ()),
        ("memory-max", events(oom_kill=1), WARN, ("lost 1 process ", "memory_max")),
        ("memory-max", unit(MemoryMax=str(GIB)), WARN, ("10 GiB",)),
        ("memory-max", unit(MemoryMax="infinity"), OK, ()),
        ("applied", PLAIN, OK, ()),
        ("applied", engine(stale=True), WARN, ("llm-appliance apply",)),
        ("engines", PLAIN, OK, ("1 of 1 serve",)),
        ("engines", engine(state="held", reason="no room"), FAIL, ("default is held: no room", "resume default")),
        ("engines", replace(PLAIN, fleet=Fleet(age=1.0, incidents=(DIED,))), WARN, ("default: cuda-fault, 3 times",)),
        ("engines", replace(PLAIN, fleet=Fleet(age=1.0, incidents=(replace(DIED, age=1e6),))), OK, ()),
        ("engines", replace(PLAIN, fleet=Fleet(age=500.0)), WARN, ("8m 20s",)),
        ("engines", NOBODY, FAIL, ("llm-supervisor",)),
        ("engines", replace(NOBODY, installed=False), SKIPPED, ()),
        ("runtime", replace(PLAIN, driver=NotKnown("x")), OK, ("0.32.0-cpu",)),
        ("runtime", PLAIN, WARN, ("the GPUs are not used",)),
        ("runtime", replace(PLAIN, runtime=Runtime()), FAIL, ("no vLLM runtime",)),
        ("runtime", replace(PLAIN, runtime=Runtime(builder="downloading", message="47 %")), WARN, ("47 %",)),
        ("runtime", replace(PLAIN, runtime=replace(RUNTIME, usable=False)), FAIL, ("Python is gone",)),
        ("models", PLAIN, OK, ("/m 10 GiB",)),
        ("models", replace(PLAIN, models=(replace(MODEL, standing="/m does not exist"),)), FAIL, ("does not exist",)),
        ("users", replace(PLAIN, accounts=()), FAIL, ("llm-gateway, llm-engine",)),
        ("journal", replace(PLAIN, journal=Journal(kept=False)), WARN, ("/var/log/journal",)),
        ("journal", replace(PLAIN, journal=Journal(kept=True)), OK, ()),
    ],
)  # fmt: skip
def test_hosts(name: str, facts: HostFacts, verdict: Verdict | None, words: tuple[str, ...]) -> None:
    if verdict is None:
        with_owner = replace(facts, root=True)
        assert any(one.verdict is FAIL and words[0] in one.evidence for one in findings(name, with_owner))
    else:
        expect(name, facts, verdict, *words)


def test_users_with_the_number_of_a_person() -> None:
    names = ("llm-gateway", "llm-engine", "llm-supervisor", "llm-runtime")
    good = tuple(Account(name=name, uid=900, groups=frozenset()) for name in names)
    expect("users", replace(PLAIN, accounts=good), OK)
    expect("users", replace(PLAIN, accounts=(replace(good[0], uid=1001), *good[1:])), WARN, "below 1000")


def test_shared_memory_as_it_is_configured() -> None:
    expect("shm", PLAIN, FAIL, "160 MiB", config=Config(engines=(Engine(shm_size=1 << 20),)))
    expect("shm", PLAIN, WARN, "2 GPUs", config=Config(engines=(Engine(shm_size=512 << 20),)))


@pytest.mark.parametrize(
    ("wanted", "bound", "verdict"),
    [("0.0.0.0:8080", "10.1.2.3", FAIL), ("10.1.2.3:8080", "0.0.0.0", FAIL), ("0.0.0.0:8080", "::", FAIL),
     ("[::]:8080", "127.0.0.1", FAIL), ("0.0.0.0:8080", "::1", OK), ("[::1]:8080", "0.0.0.0", OK),
     ("10.1.2.3:8080", "10.1.2.4", OK)],
)  # fmt: skip
def test_who_stands_in_the_way_of_an_address(wanted: str, bound: str, verdict: Verdict) -> None:
    other = replace(GATEWAY, host=bound, ours=False, owner="nginx (pid 9)", pid=9)
    own = replace(GATEWAY, host=wanted.rpartition(":")[0].strip("[]"), ours=True)
    expect("ports", listening(other, own, ADMIN), verdict, config=Config(gateway=Gateway(listen=(wanted,))))


def test_an_admin_listener_that_is_open() -> None:
    open_ = Config(gateway=Gateway(admin_listen="0.0.0.0:8081"))
    expect("exposure", PLAIN, FAIL, "asks for no key", config=open_)
