"""`GET /status` keeps to the schema that the package carries."""

from __future__ import annotations

import json
import time
from importlib.resources import files
from typing import Any

import pytest

from appliance.samples import Gpu, Nvml
from appliance.supervisor.gpuboard import GpuBoard
from tests.component.gateway.conftest import Start
from tests.support.gatewayprocess import FakeEngine, config, remote
from tests.support.waiting import wait_until

SCHEMA = json.loads(files("appliance.gateway").joinpath("status_schema.json").read_text())
KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_a(value: object, kind: str) -> bool:
    if kind in ("number", "integer"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, KINDS[kind])


def faults(value: Any, schema: dict[str, Any], place: str = "$") -> list[str]:
    """What in a value is against the part of JSON Schema that the schema uses."""
    unknown = set(schema) - {
        "$schema",
        "title",
        "description",
        "type",
        "required",
        "properties",
        "items",
        "enum",
        "const",
    }
    assert not unknown, f"{place}: the test does not know {unknown}"
    kinds = schema.get("type", [])
    if kinds and not any(is_a(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return [f"{place}: {value!r} is no {kinds}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place}: {value!r} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{place}: {value!r} is not {schema['const']}")
    if isinstance(value, dict):
        known = schema.get("properties")
        found += [f"{place}: {name} is missing" for name in schema.get("required", []) if name not in value]
        found += [f"{place}: {name} is not in the schema" for name in value if known is not None and name not in known]
        for name, inner in (known or {}).items():
            found += faults(value[name], inner, f"{place}.{name}") if name in value else []
    if isinstance(value, list):
        for number, item in enumerate(value):
            found += faults(item, schema.get("items", {}), f"{place}[{number}]")
    return found


@pytest.mark.parametrize("value", [{}, {"v": 2}, {"v": 1, "engines": [{"name": 3}]}, []])
def test_the_test_finds_faults(value: object) -> None:
    assert faults(value, SCHEMA)


def test_status_keeps_to_its_schema(engine: FakeEngine, start: Start) -> None:
    gateway = start(config(remote(engine.url) + '\n[[engine]]\nname = "local"\nmodel = "org/x"\n'))
    assert faults(gateway.admin("/status"), SCHEMA) == []
    gateway.engine_state("local", "loading", message="m", ready=None, measured={"kv_gib": 1.5, "odd": "x"},
                         planned={"gpu": "L4", "weights_gib": 1, "kv_gib": 2.0},
                         phases={"starting": 18.25, "odd": 1})  # fmt: skip
    gateway.incidents = [{"id": "I", "engine": "local", "at": 1.0, "kind": "death", "cause": "engine-died",
                          "reason": "r", "count": 2}]  # fmt: skip
    assert gateway.admin("/status")["drift"] is None
    gateway.drift = [{"kind": "settings", "text": "t", "remedy": "llm-appliance apply", "engine": None,
                      "settings": ["gateway.max_body"]}]  # fmt: skip
    gateway.fleet(local={"state": "restarting", "since": 1.0, "cause": "engine-died", "reason": "r", "next": "n",
                         "restarts": 2, "load_s": 3.5, "not_before": None, "incident": "I"})  # fmt: skip
    told = wait_until(
        lambda: (s := gateway.admin("/status"))["engines"][1]["replicas"][0]["restarts"] == 2 and s,
        3,
        "it is read",
        0.05,
    )
    assert faults(told, SCHEMA) == []
    assert (told["incidents"], told["drift"]) == (gateway.incidents, gateway.drift)
    assert told["engines"][1]["replicas"][0]["incident"] == "I"
    shown = told["engines"][1]["replicas"][0]
    assert (shown["measured"], shown["planned"]) == ({"kv_gib": 1.5}, {"weights_gib": 1.0, "kv_gib": 2.0})
    assert shown["phases"] == {"starting": 18.25}
    assert told["state"] == "degraded" and told["supervisor"]["mode"] == "act" and told["at"] <= time.time()
    gateway.config_file.write_text("[nonsense]\nx = 1\n")
    gateway.reload()
    told = gateway.admin("/status")
    assert faults(told, SCHEMA) == [] and not told["config"]["valid"] and told["config"]["problems"]


def test_gpus_are_shown_as_the_supervisor_saw_them(start: Start) -> None:
    gateway = start(config('[[engine]]\nname = "local"\nmodel = "org/x"\n'))
    told = gateway.admin("/status")
    assert (told["driver"], told["gpus"], faults(told, SCHEMA)) == (None, [], [])
    board = GpuBoard(str(gateway.run / "supervisor/gpus.json"))
    board.show(Nvml(t=1.0, driver="580.95", gpus=(
        Gpu(uuid="GPU-a", pci="0000:65:00", idx=0, name="H", util=97.0, mem_used_mib=1024.0, pids=(7,)),
        Gpu(uuid="GPU-b", idx=1, code=15, error="GPU is lost", remapped_rows=(1, 2, True, False)),
    )))  # fmt: skip
    told = gateway.admin("/status")
    assert faults(told, SCHEMA) == []
    assert told["driver"] | {"at": 0} == {"at": 0, "version": "580.95", "error": None, "code": None}
    first, second = told["gpus"]
    assert (first["util"], first["power_w"], first["error"], "pids" in first) == (97.0, None, None, False)
    assert (second["code"], second["error"], second["remapped_rows"]) == (15, "GPU is lost", [1, 2, True, False])
    text = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
    assert 'llm_appliance_gpu_memory_used_bytes{gpu="GPU-a"} 1073741824' in text
    assert 'llm_appliance_gpu_utilization_ratio{gpu="GPU-a"} 0.97' in text
    assert "gpu_power_watts" not in text  # nobody said
    board.show(Nvml(t=2.0, error="no answer from NVML"))
    told = gateway.admin("/status")
    assert faults(told, SCHEMA) == []
    assert told["driver"]["error"] == "no answer from NVML"
    assert [(gpu["uuid"], gpu["util"]) for gpu in told["gpus"]] == [("GPU-a", None), ("GPU-b", None)]
    board.show(Nvml(t=3.0, error="NVML Shared Library Not Found", code=12))
    told = gateway.admin("/status")
    assert (told["driver"], told["gpus"]) == (None, [])
