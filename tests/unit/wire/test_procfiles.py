"""Texts of /proc and of Debian's package tools, as kernels and tools print them."""

from __future__ import annotations

import pytest

from appliance.quantity import UNKNOWN
from appliance.wire import aptstate, procnet, procsys

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   105        0 4242 1 0 100 0 0 10 0
   1: 00000000:01BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0
   2: 0100007F:1F90 0100007F:D2A4 01 00000000:00000000 00:00000000 00000000   105        0 4244 1 0 20 4 30 10 -1
   3: torn
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000001000000:1F91 00000000000000000000000000000000:0000 0A 0:0 00:0 0 1000 0 77 1
   1: 0000000000000000FFFF00000100007F:1F92 00000000000000000000000000000000:0000 0A 0:0 00:0 0 1000 0 78 1
"""


def test_listening_sockets() -> None:
    assert list(procnet.listening(TCP)) == [
        procnet.Entry("127.0.0.1", 8080, 105, 4242),
        procnet.Entry("0.0.0.0", 443, 0, 4243),
    ]
    assert [(each.host, each.port, each.uid) for each in procnet.listening(TCP6)] == [
        ("::1", 8081, 1000), ("127.0.0.1", 8082, 1000),
    ]  # fmt: skip


def test_lingering_connections() -> None:
    assert procnet.time_wait("sockets: used 82\nTCP: inuse 4 orphan 0 tw 12 alloc 4 mem 415\nUDP: inuse 0\n") == 12
    assert procnet.time_wait("") is UNKNOWN


def test_counters_and_pressure() -> None:
    assert procsys.counters("MemTotal:       24684092 kB\nHugePages_Total:       7\noom_kill 3\n\nx\n") == {
        "MemTotal": 24684092 * 1024, "HugePages_Total": 7, "oom_kill": 3,
    }  # fmt: skip
    assert (
        procsys.stalled("some avg10=7.08 avg60=6.98 avg300=3.61 total=2\nfull avg10=4.94 avg60=4.7 total=1\n") == 6.98
    )
    assert procsys.stalled("") is UNKNOWN


def test_mounts() -> None:
    text = (
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "25 24 0:23 / /srv/my\\040models rw,noexec - nfs4 host:/x rw,vers=4.2\n"
        "26 27 0:24 / /var ro,relatime shared:1 - xfs /dev/vdb rw\n"
    )
    table = tuple(procsys.mounts(text))
    found = [procsys.mount_of(path, iter(table)) for path in ("/srv/my models/x", "/srv/my", "/var", "/variable")]
    assert [each and (each.kind, sorted(each.options & {"ro", "noexec"})) for each in found] == [
        ("nfs4", ["noexec"]), ("ext4", []), ("xfs", ["ro"]), ("ext4", []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc",
         "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)",
         "580.95.05"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_driver_s_version(text: str, version: str) -> None:
    assert procsys.driver_version(text) == version


STATUS = """Package: nvidia-driver
Status: hold ok installed
Version: 535.183.01-1~deb12u1
Description: NVIDIA metapackage
 Status: not a field

Package: libcuda1
Status: install ok installed
Version: 535.183.01-1~deb12u1

Package: nvidia-smi
Status: deinstall ok config-files
Version: 1

Package: nano
Status: install ok installed
Version: 7
"""
DUMP = """APT "";
APT::Periodic "";
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade::Package-Blacklist "";
Unattended-Upgrade::Package-Blacklist:: "nvidia-";
Unattended-Upgrade::Package-Blacklist:: "libcuda1$";
"""


def test_packages() -> None:
    assert [(each.name, each.held) for each in aptstate.driver_packages(STATUS)] == [
        ("nvidia-driver", True), ("libcuda1", False),
    ]  # fmt: skip
    assert aptstate.is_unattended(DUMP) and aptstate.spared(DUMP) == ("nvidia-", "libcuda1$")
    assert not aptstate.is_unattended('APT::Periodic::Unattended-Upgrade "0";\n') and not aptstate.is_unattended("")
