"""Looks at trees that stand for a machine, and at programs that answer, complain or hang."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from appliance.config.model import Network
from appliance.errors import Unreachable
from appliance.gpufacts import Bridge
from appliance.host import files
from appliance.host.checkup import disks, kernel, network, nvidia, pci, software, units
from appliance.host.checkup.together import gathered, in_thread
from appliance.host.command import Late, Silent
from appliance.hostfacts import NotKnown
from appliance.quantity import UNKNOWN
from tests.unit.wire.test_nvidiasmi import A100


def write(root: Path, **texts: str) -> Path:
    """Files below a root; `__` in a name stands for `/`."""
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def program(directory: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name that comes first on the search path."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


# --- the bus ----------------------------------------------------------------------------------------------------------


def device(sys: Path, path: str, vendor: str, kind: str, acs: int | None = None, **more: str) -> Path:
    """A PCI device where the kernel has it, and its link under bus/pci/devices."""
    real = sys / "devices/pci0000:00" / path
    real.mkdir(parents=True, exist_ok=True)
    write(real, vendor=vendor + "\n", **{"class": kind + "\n"}, **more)
    space = bytearray(4096)
    if acs is not None:
        space[0x100:0x104] = (0x0000000D).to_bytes(4, "little")
        space[0x106:0x108] = acs.to_bytes(2, "little")
    (real / "config").write_bytes(bytes(space))
    links = sys / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / real.name).symlink_to(real)
    return real


def test_gpus_on_the_bus_with_the_bridges_above_them(tmp_path: Path) -> None:
    port = "0000:00:03.1"
    device(tmp_path, port, "0x1022", "0x060400", acs=0x1D)
    gpu = device(
        tmp_path, f"{port}/0000:41:00.0", "0x10de", "0x030200", current_link_speed="2.5 GT/s PCIe\n",
        max_link_speed="16.0 GT/s PCIe\n", current_link_width="4\n", max_link_width="16\n", numa_node="-1\n",
        iommu_group__type="DMA-FQ\n",
    )  # fmt: skip
    (gpu / "driver").symlink_to("/sys/bus/pci/drivers/nvidia")
    device(tmp_path, "0000:42:00.0", "0x10de", "0x068000")
    device(tmp_path, "0000:43:00.0", "0x10de", "0x040300")  # the GPU's sound
    found = pci.bus(str(tmp_path))
    assert found.switches == 1
    (seen,) = found.gpus
    assert (seen.address, seen.bound, seen.width, seen.width_max) == ("0000:41:00.0", "nvidia", 4, 16)
    assert (seen.speed, seen.speed_max, seen.numa, seen.iommu) == (2.5, 16.0, UNKNOWN, "DMA-FQ")
    assert seen.bridges == (Bridge(address=port, acs=0x1D),)
    assert pci.bus(str(tmp_path / "nothing")).gpus == ()


def test_infiniband_and_not_ethernet(tmp_path: Path) -> None:
    write(
        tmp_path / "class/infiniband", mlx5_0__ports__1__state="1: DOWN\n", mlx5_0__ports__1__link_layer="InfiniBand\n",
        mlx5_1__ports__1__state="4: ACTIVE\n", mlx5_1__ports__1__link_layer="Ethernet\n",
    )  # fmt: skip
    # double underscores part directories, so the names of adapters keep their single one
    assert pci.infiniband(str(tmp_path)).ports == {"mlx5_0 port 1": "DOWN"}


# --- the driver -------------------------------------------------------------------------------------------------------


def test_the_driver_s_files(tmp_path: Path) -> None:
    write(
        tmp_path / "proc", modules="nvidia_uvm 1 0 - Live 0x0\nnvidia 1 9 - Live 0x0\next4 1 1 - Live 0x0\n",
        driver__nvidia__version="NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024\n",
    )  # fmt: skip
    write(tmp_path / "dev", nvidia0="", nvidiactl="", null="")
    write(tmp_path / "lib", **{"libcuda.so.535.183.01": ""})
    (tmp_path / "lib/libcuda.so.1").symlink_to("libcuda.so.535.183.01")
    found = asyncio.run(nvidia.driver(str(tmp_path / "proc"), str(tmp_path / "dev"), (str(tmp_path / "lib"),)))
    assert (found.loaded, found.modules) == ("535.183.01", {"nvidia", "nvidia_uvm"})
    assert (found.nodes, found.libraries) == ({"nvidia0", "nvidiactl"}, {"libcuda.so.1": "535.183.01"})


def test_nvidia_smi_and_whose_processes_it_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, answer=A100.replace("4711", "17"))
    write(
        tmp_path / "proc/17", comm="VLLM::EngineCor\n", cgroup="0::/system.slice/system-x.slice/llm-engine@a.service\n"
    )
    program(tmp_path / "bin", "nvidia-smi", f"cat {tmp_path}/answer", monkeypatch)
    found = asyncio.run(nvidia.smi("", str(tmp_path / "proc")))
    (gpu,) = found.gpus
    assert gpu.processes is not UNKNOWN
    (process,) = gpu.processes
    assert (process.name, process.unit, process.pid) == ("VLLM::EngineCor", "llm-engine@a.service", 17)


def test_a_complaint_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "Failed to initialize NVML: Driver/library version mismatch"
    program(tmp_path, "nvidia-smi", f"echo '{words}'; exit 18", monkeypatch)
    found = asyncio.run(nvidia.smi(""))
    assert (found.error, found.code) == (words, 18)


def test_a_driver_that_hangs_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "nvidia-smi", "trap '' TERM; exec sleep 60", monkeypatch)
    begun = time.monotonic()
    with pytest.raises(Late, match="nvidia-smi did not end") as caught:
        asyncio.run(nvidia.smi("", deadline_s=0.3))
    assert caught.value.state == "S" and time.monotonic() - begun < 5


def test_without_nvidia_smi_the_supervisor_s_reading_counts_while_it_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    board = tmp_path / "gpus.json"
    gpu = {"pci": "0000:3b:00", "uuid": "GPU-a", "name": "N", "recovery_action": 1, "throttle": 0x48, "util": 97.0,
           "remapped_rows": [0, 0, True, False], "ecc_uncorrected": 0}  # fmt: skip
    told = {"driver": "580.95.05", "error": "", "code": None, "gpus": [gpu]}
    files.replace_json(board, {"at": time.time(), **told})
    found = asyncio.run(nvidia.smi(str(board)))
    assert (found.source, found.driver) == ("the supervisor", "580.95.05")
    (seen,) = found.gpus
    assert (seen.recovery, seen.slowed, seen.remapped) == (
        "GPU reset",
        ("hardware slowdown", "heat"),
        (0, 0, True, False),
    )
    assert seen.processes is seen.persistence is UNKNOWN
    files.replace_json(
        board, {"at": time.time() - 3600, "driver": "580.95.05", "error": "", "code": None, "gpus": [gpu]}
    )
    with pytest.raises(Silent, match="no reading"):
        asyncio.run(nvidia.smi(str(board)))


# --- the machine ------------------------------------------------------------------------------------------------------


def test_memory_and_limits(tmp_path: Path) -> None:
    write(
        tmp_path, meminfo="MemTotal: 100 kB\nMemAvailable: 40 kB\nSwapTotal: 20 kB\nSwapFree: 5 kB\n",
        vmstat="oom_kill 2\n", pressure__io="some avg10=0 avg60=41.5 avg300=0 total=1\n",
        sys__fs__nr_open="1048576\n", **{"sys__fs__file-nr": "1024 0 99\n", "sys__net__core__somaxconn": "128\n"},
    )  # fmt: skip
    found = kernel.memory(str(tmp_path))
    assert (found.total, found.available, found.swap, found.swap_used) == (102400, 40960, 20480, 15360)
    assert (found.oom_kills, found.disk_stalled, found.stalled) == (2, 41.5, UNKNOWN)
    limits = kernel.limits(str(tmp_path))
    assert (limits.files_each, limits.files_used, limits.backlog, limits.maps) == (1048576, 1024, 128, UNKNOWN)


def stat(pid: int, comm: str, state: str, ticks: int = 0) -> str:
    return f"{pid} ({comm}) {state} 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 77 0 0\n"


def test_a_process_is_stuck_when_it_has_not_moved(tmp_path: Path) -> None:
    for pid, comm, state in ((5, "VLLM::Worker", "D"), (6, "cp", "D"), (7, "sh", "S")):
        write(tmp_path / str(pid), stat=stat(pid, comm, state), wchan="uvm_spin_loop")

    async def moving() -> object:
        looking = asyncio.ensure_future(kernel.stuck(str(tmp_path)))
        await asyncio.sleep(kernel.BETWEEN_S / 3)
        write(tmp_path / "6", stat=stat(6, "cp", "D", ticks=9))
        return await looking

    (found,) = asyncio.run(moving())  # type: ignore[misc]
    assert (found.pid, found.comm, found.where) == (5, "VLLM::Worker", "uvm_spin_loop")


def test_the_clock_and_a_container(tmp_path: Path) -> None:
    assert kernel.clock_of().synchronised in (True, False) and kernel.clock_of().written < time.time()
    assert kernel.container(str(tmp_path)) == ""
    assert kernel.container(str(write(tmp_path, run__systemd__container="systemd-nspawn\n"))) == "systemd-nspawn"


def test_disks_of_directories_that_are_and_that_will_be(tmp_path: Path) -> None:
    proc = write(tmp_path, self__mountinfo=f"1 0 8:1 / / rw - ext4 x rw\n2 1 0:9 / {tmp_path} rw,noexec - tmpfs t rw\n")
    found = asyncio.run(disks.mounts({str(tmp_path / "not/yet"): "caches", "/": "state and runtimes"}, str(proc)))
    assert [(each.kind, each.noexec, each.purpose) for each in found] == [
        ("tmpfs", True, "caches"), ("ext4", False, "state and runtimes"),
    ]  # fmt: skip
    assert all(each.size > each.free > 0 for each in found)


def test_a_network_disk_is_asked_by_a_program_that_may_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = write(tmp_path, self__mountinfo=f"1 0 8:1 / / rw - ext4 x rw\n2 1 0:9 / {tmp_path} rw - nfs4 h:/ rw\n")
    program(tmp_path / "bin", "stat", "echo 100 50 4096 7", monkeypatch)
    (found,) = asyncio.run(disks.mounts({str(tmp_path): "models"}, str(proc)))
    assert (found.kind, found.size, found.free, found.inodes_free) == ("nfs4", 409600, 204800, 7)
    program(tmp_path / "bin", "stat", "exit 1", monkeypatch)
    (found,) = asyncio.run(disks.mounts({str(tmp_path): "models"}, str(proc)))
    assert found.size == 0


def test_leftovers_are_those_whose_owner_has_nothing_that_could_use_them(tmp_path: Path) -> None:
    shm = write(tmp_path / "shm", psm_abc="x" * 5000, mine="y")
    (found,) = disks.shared_memory(
        str(shm), str(write(tmp_path / "proc", **{"1__stat": stat(1, "init", "S")}))
    ).leftovers
    assert found.name == "psm_abc" and found.size >= 4096
    write(tmp_path / "proc", **{"2__stat": stat(2, "VLLM::EngineCor", "S")})
    assert disks.shared_memory(str(shm), str(tmp_path / "proc")).leftovers == ()


def test_sockets_and_their_owners(tmp_path: Path) -> None:
    row = "   {}: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 {} 0 4242 1\n"
    proc = write(tmp_path, net__tcp="  sl\n" + row.format(0, os.getuid()), net__sockstat="TCP: inuse 4 tw 12 alloc 1\n",
                 sys__net__ipv4__ip_local_port_range="32768\t60999\n", **{"7__comm": "nginx\n"})  # fmt: skip
    (proc / "7/fd").mkdir()
    (proc / "7/fd/5").symlink_to("socket:[4242]")
    found = network.sockets(proc=str(proc))
    assert (found.time_wait, found.first, found.last) == (12, 32768, 60999)
    (one,) = found.listening
    assert (one.host, one.port, one.owner, one.pid) == ("127.0.0.1", 8080, "nginx (pid 7)", 7)
    assert one.ours is UNKNOWN  # nobody told which process is the gateway's
    assert [network.sockets(gateway=pid, proc=str(proc)).listening[0].ours for pid in (7, 0)] == [True, False]
    (proc / "7").rename(proc / "1")
    assert network.sockets(gateway=0, proc=str(proc)).listening[0].ours is UNKNOWN  # systemd's, for whomever


def test_reaching_a_server() -> None:
    refused = asyncio.run(network.reached("http://127.0.0.1:1/", "the model hub", Network()))
    assert (refused.fault, refused.kind, refused.status) == ("connection refused", "refused", 0)
    lost = asyncio.run(network.reached("http://nowhere.invalid/", "the model hub", Network(no_proxy="*")))
    assert lost.fault and lost.kind in ("dns", "late", "other")


def test_the_tool_chain_is_looked_for_where_engines_look(tmp_path: Path) -> None:
    for name in ("bin/gcc", "bin/python3.11"):
        path = tmp_path / "usr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
    (tmp_path / "runtime/bin").mkdir(parents=True)
    (tmp_path / "runtime/bin/python").symlink_to(tmp_path / "usr/bin/python3.11")
    found = software.toolchain(str(tmp_path / "runtime"), "3.11", str(tmp_path / "usr"))
    assert found.c.endswith("gcc") and found.header is False
    write(tmp_path / "usr/include/python3.11", **{"Python.h": ""})
    assert software.toolchain(str(tmp_path / "runtime"), "3.11", str(tmp_path / "usr")).header is True


# --- together ---------------------------------------------------------------------------------------------------------


def test_no_look_holds_up_the_others() -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def good() -> str:
        return "seen"

    looks = {
        "good": good,
        "hangs": lambda: in_thread(lambda: time.sleep(60)),
        "unreachable": lambda: fails(Unreachable("nobody there")),
        "missing": lambda: fails(FileNotFoundError(2, "No such file or directory", "/x")),
        "fault": lambda: fails(KeyError("x")),
    }
    begun = time.monotonic()
    found = asyncio.run(gathered(looks, 0.2))
    assert time.monotonic() - begun < 5
    assert found["good"] == "seen" and found["unreachable"] == NotKnown("nobody there")
    assert found["missing"] == NotKnown("/x: no such file or directory")
    assert isinstance(found["hangs"], NotKnown) and found["hangs"].late
    assert isinstance(found["fault"], NotKnown) and "a fault of this program: KeyError" in found["fault"].why


def test_a_thread_that_hangs_does_not_keep_the_program() -> None:
    import subprocess

    code = (
        "import asyncio, time; from appliance.host.checkup.together import gathered, in_thread\n"
        "asyncio.run(gathered({'x': lambda: in_thread(lambda: time.sleep(60))}, 0.1)); print('ended')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "ended\n"


# --- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edited", [(), ("config.toml",), ("config.toml", "etc/own.conf")])
def test_files_of_a_unit_that_changed_since_systemd_read_them(
    tmp_path: Path, edited: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generator writes its drop-in at each daemon-reload, so what is newer was not read."""
    write(tmp_path, **{"config.toml": "", "lib__x.service": "", "etc__own.conf": "", "run__made.conf": ""})
    for number, name in enumerate(("config.toml", "lib/x.service", "etc/own.conf", "run/made.conf", *edited)):
        os.utime(tmp_path / name, (number, number))
    (tmp_path / "shown").write_text(
        f"Id=x.service\nLoadState=loaded\nSourcePath={tmp_path}/config.toml\nFragmentPath={tmp_path}/lib/x.service\n"
        f"DropInPaths={tmp_path}/etc/own.conf {tmp_path}/run/made.conf {tmp_path}/gone.conf\n"
    )
    program(tmp_path / "bin", "systemctl", f"cat {tmp_path}/shown", monkeypatch)
    monkeypatch.setenv("LLM_APPLIANCE_SYSTEMCTL", str(tmp_path / "bin/systemctl"))
    (found,) = asyncio.run(units.units(["x.service"], generated=str(tmp_path / "run")))
    assert found.edited == tuple(str(tmp_path / name) for name in edited)
