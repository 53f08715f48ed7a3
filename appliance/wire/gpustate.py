"""gpus.json as others show it: what is missing or of a wrong kind is null, a machine without a driver has nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from appliance.wire.promtext import Rows

_TEXTS = ("uuid", "pci", "name", "error")
_NUMBERS = (
    "idx", "util", "mem_util", "power_w", "power_limit_w", "temp_c", "mem_used_mib", "mem_total_mib",
    "recovery_action", "ecc_uncorrected", "throttle", "code",
)  # fmt: skip
MIB = 1 << 20
# metric, its help, the figure, its factor
_METRICS = (
    ("gpu_memory_used_bytes", "GPU memory in use.", "mem_used_mib", MIB),
    ("gpu_memory_total_bytes", "GPU memory.", "mem_total_mib", MIB),
    ("gpu_utilization_ratio", "Share of time in which the GPU was busy.", "util", 0.01),
    ("gpu_power_watts", "Power that the GPU draws.", "power_w", 1),
    ("gpu_temperature_celsius", "Temperature of the GPU.", "temp_c", 1),
)


def driver(value: Mapping[str, object]) -> dict[str, object] | None:
    """The driver and what is the matter with it; None where there is none."""
    version, error = _text(value, "driver"), _text(value, "error")
    if not version and not error:
        return None
    return {"at": _number(value, "at"), "version": version, "error": error, "code": _number(value, "code")}


def gpus(value: Mapping[str, object]) -> list[dict[str, object]]:
    """The GPUs, in the driver's order."""
    return [
        {
            **{name: _text(gpu, name) for name in _TEXTS},
            **{name: _number(gpu, name) for name in _NUMBERS},
            "remapped_rows": gpu.get("remapped_rows") if isinstance(gpu.get("remapped_rows"), list) else None,
        }
        for gpu in _each(value)
    ]


def metrics(value: Mapping[str, object]) -> list[tuple[str, str, str, Rows]]:
    """Gauges, one row a GPU that tells the figure; the label is its UUID."""
    return [
        (name, "gauge", text, [({"gpu": _text(gpu, "uuid") or ""}, figure * factor)
                               for gpu in _each(value) if (figure := _number(gpu, key)) is not None])
        for name, text, key, factor in _METRICS
    ]  # fmt: skip


def _each(value: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    found = value.get("gpus")
    return (gpu for gpu in found if isinstance(gpu, Mapping)) if isinstance(found, list) else iter(())


def _text(value: Mapping[str, object], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) and found else None


def _number(value: Mapping[str, object], name: str) -> float | None:
    found = value.get(name)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None
