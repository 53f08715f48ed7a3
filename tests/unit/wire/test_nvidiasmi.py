"""The shape is that of real answers of drivers 470 to 590 (A100, A5000, T4), cut to what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gpufacts import GpuProcess
from appliance.quantity import UNKNOWN
from appliance.wire import nvidiasmi

A100 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>535.54.03</driver_version><cuda_version>12.2</cuda_version><attached_gpus>1</attached_gpus>
  <gpu id="00000000:01:00.0">
    <product_name>NVIDIA A100-SXM4-80GB</product_name>
    <persistence_mode>Disabled</persistence_mode>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <uuid>GPU-513536b6-7d19-9063-b049-1e69664bb298</uuid>
    <gpu_reset_status><reset_required>No</reset_required></gpu_reset_status>
    <pci><pci_bus_id>00000000:01:00.0</pci_bus_id></pci>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
    </clocks_event_reasons>
    <fb_memory_usage><total>81920 MiB</total><used>50 MiB</used></fb_memory_usage>
    <compute_mode>Default</compute_mode>
    <utilization><gpu_util>N/A</gpu_util></utilization>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <ecc_errors><volatile>
      <sram_correctable>9</sram_correctable><sram_uncorrectable>1</sram_uncorrectable>
      <dram_correctable>0</dram_correctable><dram_uncorrectable>2</dram_uncorrectable>
    </volatile></ecc_errors>
    <remapped_rows>
      <remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
      <remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature><gpu_temp>27 C</gpu_temp></temperature>
    <fabric><state>Completed</state><status>Success</status></fabric>
    <processes>
      <process_info><pid>4711</pid><type>C</type><process_name>python</process_name>
        <used_memory>1024 MiB</used_memory></process_info>
      <process_info><pid>12</pid><type>G</type><process_name>Xorg</process_name></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""
A5000 = """<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>590.44.01</driver_version><cuda_version>13.1</cuda_version>
  <gpu id="00000000:81:00.0">
    <product_name>NVIDIA RTX A5000</product_name><persistence_mode>Enabled</persistence_mode>
    <gpu_recovery_action>GPU Reset</gpu_recovery_action>
    <mig_mode><current_mig>N/A</current_mig></mig_mode>
    <utilization><gpu_util>97 %</gpu_util></utilization>
    <ecc_mode><current_ecc>Disabled</current_ecc></ecc_mode>
    <ecc_errors><volatile><sram_uncorrectable_parity>N/A</sram_uncorrectable_parity></volatile></ecc_errors>
    <remapped_rows>N/A</remapped_rows>
    <fabric><state>N/A</state></fabric>
    <processes>N/A</processes>
  </gpu>
</nvidia_smi_log>
"""


def test_a_gpu_that_tells_all() -> None:
    found = nvidiasmi.parse(A100)
    (gpu,) = found.gpus
    assert (found.driver, found.cuda, found.error) == ("535.54.03", "12.2", "")
    assert (gpu.pci, gpu.name, gpu.persistence) == ("0000:01:00", "NVIDIA A100-SXM4-80GB", False)
    assert (gpu.ecc, gpu.uncorrected, gpu.remapped) == (True, 3, (0, 1, True, False))
    assert (gpu.slowed, gpu.temperature, gpu.fabric, gpu.busy) == (("heat",), 27.0, "Completed", UNKNOWN)
    assert gpu.processes == (GpuProcess(pid=4711, name="python", mib=1024.0),)
    assert (gpu.used_mib, gpu.recovery) == (50.0, "")


def test_what_a_gpu_does_not_tell_is_unknown() -> None:
    (gpu,) = nvidiasmi.parse(A5000).gpus
    assert (gpu.pci, gpu.persistence, gpu.recovery, gpu.busy) == ("0000:81:00", True, "GPU Reset", 97.0)
    assert gpu.uncorrected is gpu.remapped is gpu.processes is gpu.used_mib is UNKNOWN
    assert (gpu.ecc, gpu.fabric, gpu.slowed) == (False, "", ())


def test_older_drivers_ask_for_a_reset_and_name_reasons_otherwise() -> None:
    older = A100.replace("<reset_required>No", "<reset_required>Yes").replace("event_reason", "throttle_reason")
    (gpu,) = nvidiasmi.parse(older).gpus
    assert (gpu.recovery, gpu.slowed) == ("GPU reset", ("heat",))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n", 18),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
         "NVIDIA driver is installed and running.\n\n", 9),
        ("Unable to determine the device handle for GPU0000:0B:00.0: GPU is lost.  Reboot the system to recover", 15),
        ("No devices were found\n", 6),
        ("Segmentation fault", UNKNOWN),
        ("", UNKNOWN),
    ],
)  # fmt: skip
def test_complaints(text: str, code: object) -> None:
    found = nvidiasmi.parse(text)
    assert found.error and "\n" not in found.error and found.code == code and found.gpus == ()


@given(st.integers(0, len(A100)))
def test_a_torn_answer_is_an_error_and_no_exception(cut: int) -> None:
    found = nvidiasmi.parse(A100[:cut])
    assert found.error or len(found.gpus) == 1
