"""Every check of the machine, in the order and under the headings in which `doctor` tells them.

The configuration and the keys file are read by `cli/localchecks`, since that is no question of facts; they come first.
"""

from __future__ import annotations

from . import driver, gpus, links, machine, network, service
from .check import Check

APPLIANCE, GPUS, MACHINE, NETWORK = "The appliance", "GPUs", "The machine", "Network"

CHECKS: tuple[Check, ...] = (
    Check("gateway", APPLIANCE, service.gateway),
    Check("engines", APPLIANCE, service.engines),
    Check("applied", APPLIANCE, service.applied),
    Check("runtime", APPLIANCE, service.runtime),
    Check("models", APPLIANCE, service.models),
    Check("units", APPLIANCE, service.units),
    Check("overrides", APPLIANCE, service.overrides),
    Check("memory-max", APPLIANCE, service.memory_limits),
    Check("users", APPLIANCE, service.users),
    Check("journal", APPLIANCE, service.journal),
    Check("timeouts", APPLIANCE, network.timeouts),
    Check("gpu", GPUS, driver.gpus),
    Check("driver", GPUS, driver.driver),
    Check("device-nodes", GPUS, driver.nodes),
    Check("uvm", GPUS, driver.uvm),
    Check("persistence", GPUS, driver.persistence),
    Check("fabric", GPUS, driver.fabric),
    Check("ecc", GPUS, gpus.memory_errors),
    Check("gpu-clocks", GPUS, gpus.clocks),
    Check("gpu-users", GPUS, gpus.users),
    Check("placement", GPUS, gpus.placement),
    Check("topology", GPUS, links.topology),
    Check("acs", GPUS, links.access_control),
    Check("pcie", GPUS, links.pcie),
    Check("nccl", GPUS, links.nccl),
    Check("upgrades", GPUS, machine.upgrades),
    Check("memory", MACHINE, machine.memory),
    Check("swap", MACHINE, machine.swap),
    Check("shm", MACHINE, machine.shared_memory),
    Check("limits", MACHINE, machine.limits),
    Check("disk", MACHINE, machine.disks),
    Check("disk-stalls", MACHINE, machine.stalls),
    Check("toolchain", MACHINE, machine.toolchain),
    Check("clock", MACHINE, machine.clock),
    Check("stuck", MACHINE, machine.stuck),
    Check("ports", NETWORK, network.ports),
    Check("exposure", NETWORK, network.exposure),
    Check("connections", NETWORK, network.connections),
    Check("hub", NETWORK, network.hub),
    Check("proxy", NETWORK, network.proxy),
)
