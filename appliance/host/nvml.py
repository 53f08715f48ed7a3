"""What NVIDIA's driver tells of its GPUs. Every call here may block for ever: for a process of its own alone.

Each figure is optional: a GPU that does not support it (GB10 has no memory of its own, MIG no utilisation, GeForce no
ECC) has it UNKNOWN, whatever the library's age. A GPU that fails as a whole keeps the name under which it was known
before, for NVML tells nothing of a lost one but its index. Nothing here raises.

While a GPU needs a reset the library is closed after each reading: a reset is refused as long as anybody has it open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pynvml

from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import Gpu, Nvml
from appliance.wire.pciid import pci_id

T = TypeVar("T")

MIB = 1 << 20
MOST_PIDS = 256
LOST, RESET_REQUIRED = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED
# Of a single figure these say "I cannot tell", not "this GPU is ill".
_SILENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
    }
)


class Reader:
    """Reads all GPUs, as often as asked."""

    def __init__(self) -> None:
        self._open = False
        self._known: dict[int, Gpu] = {}  # index -> who it was

    def read(self, t: float) -> Nvml:
        """One reading; an error of the library as a whole is in `error` and `code`."""
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            driver = _asked(pynvml.nvmlSystemGetDriverVersion)
            gpus = tuple(self._gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
        except pynvml.NVMLError as error:
            self.close()
            return Nvml(t=t, error=_words(error), code=_code(error))
        if any(_wants_reset(gpu) for gpu in gpus):
            self.close()
        return Nvml(t=t, gpus=gpus, driver=driver if isinstance(driver, str) else "")

    def close(self) -> None:
        """Let go of the driver; the next reading opens it again."""
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return

    def _gpu(self, index: int) -> Gpu:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            who = _identity(index, handle)
        except pynvml.NVMLError as error:
            who = self._known.get(index, Gpu(idx=index))
            return replace(who, error=_words(error), code=_code(error))
        self._known[index] = who
        return _figures(who, handle)


def _identity(index: int, handle: object) -> Gpu:
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return Gpu(
        idx=index,
        pci=pci_id(bus if isinstance(bus, str) else bus.decode("ascii", "replace")),
        uuid=_told(_asked(pynvml.nvmlDeviceGetUUID, handle)),
        name=_told(_asked(pynvml.nvmlDeviceGetName, handle)),
    )


def _figures(who: Gpu, handle: object) -> Gpu:
    faults: list[pynvml.NVMLError] = []

    def asked(function: Callable[..., T], *arguments: object) -> Maybe[T]:
        return _asked(function, handle, *arguments, faults=faults)

    utilisation = asked(pynvml.nvmlDeviceGetUtilizationRates)
    memory = asked(pynvml.nvmlDeviceGetMemoryInfo)
    milliwatts, limit = asked(pynvml.nvmlDeviceGetPowerUsage), asked(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    celsius = asked(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
    processes = asked(pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
    rows = asked(pynvml.nvmlDeviceGetRemappedRows)
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    read = replace(
        who,
        util=UNKNOWN if utilisation is UNKNOWN else float(utilisation.gpu),
        mem_util=UNKNOWN if utilisation is UNKNOWN else float(utilisation.memory),
        power_w=UNKNOWN if milliwatts is UNKNOWN else milliwatts / 1000,
        power_limit_w=UNKNOWN if limit is UNKNOWN else limit / 1000,
        temp_c=UNKNOWN if celsius is UNKNOWN else float(celsius),
        mem_used_mib=UNKNOWN if memory is UNKNOWN else round(memory.used / MIB, 1),
        mem_total_mib=UNKNOWN if memory is UNKNOWN else round(memory.total / MIB, 1),
        pids=UNKNOWN if processes is UNKNOWN else tuple(int(each.pid) for each in processes[:MOST_PIDS]),
        recovery_action=_recovery_action(asked),
        remapped_rows=UNKNOWN if rows is UNKNOWN else (int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])),
        ecc_uncorrected=asked(pynvml.nvmlDeviceGetTotalEccErrors, uncorrected, volatile),
        throttle=_throttle(asked),
    )
    # What is worst stands for the rest: a lost GPU fails every question in its own way.
    faults.sort(key=lambda fault: _code(fault) not in (LOST, RESET_REQUIRED))
    return replace(read, error=_words(faults[0]), code=_code(faults[0])) if faults else read


def _recovery_action(asked: Callable[..., Maybe[object]]) -> Maybe[int]:
    """The field's own status counts as well as the call's."""
    values = asked(pynvml.nvmlDeviceGetFieldValues, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is UNKNOWN or values[0].nvmlReturn != pynvml.NVML_SUCCESS:  # type: ignore[index]
        return UNKNOWN
    return int(values[0].value.uiVal)  # type: ignore[index]


def _throttle(asked: Callable[..., Maybe[int]]) -> Maybe[int]:
    """Drivers before 535 know the reasons by their older name."""
    reasons = asked(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    return asked(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) if reasons is UNKNOWN else reasons


def _asked(function: Callable[..., T], *arguments: object, faults: list[pynvml.NVMLError] | None = None) -> Maybe[T]:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if faults is not None and _code(error) not in _SILENT:
            faults.append(error)
        return UNKNOWN


def _wants_reset(gpu: Gpu) -> bool:
    return gpu.code == RESET_REQUIRED or (gpu.recovery_action is not UNKNOWN and gpu.recovery_action != 0)


def _told(text: Maybe[str]) -> str:
    return text if isinstance(text, str) else ""


def _code(error: pynvml.NVMLError) -> int:
    return int(error.value)


def _words(error: pynvml.NVMLError) -> str:
    return str(error)
