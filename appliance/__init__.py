"""llm-appliance: vLLM engines, a gateway and a supervisor as systemd units. `appliance/README.md` is the map."""

__version__ = "0.1.0"
