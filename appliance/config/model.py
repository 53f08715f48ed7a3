"""The configuration as frozen values. Defaults are those of the contract; `table` holds the rows that fill them.

Durations are float seconds, sizes int bytes, "auto" and "off" are spelt out in the types. A `Config` that exists is
valid: the parser and the laws have passed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from appliance import names

Auto = Literal["auto"]
Priority = Literal["interactive", "standard", "batch"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "standard", "batch")  # highest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """`[gateway.admission]`."""

    max_in_flight: int | Auto = "auto"
    queue_size: int = 512
    queue_timeout: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """`[gateway.timeouts]`, seconds."""

    head: float = 20.0
    body: float = 30.0
    connect: float = 5.0
    first_token: float = 600.0
    stall: float = 120.0
    drain: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """`[gateway.stream]`."""

    keepalive: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """`[gateway]`. Addresses are `HOST:PORT`, `[V6]:PORT`."""

    listen: tuple[str, ...] = ("127.0.0.1:8080",)
    admin_listen: str = "127.0.0.1:8081"
    tls_certificate: str = ""
    tls_key: str = ""
    max_body: int = 64 << 20
    max_bodies: int = 512 << 20
    max_connections: int = 12_000
    trusted_proxies: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    admission: Admission = field(default_factory=Admission)
    timeouts: Timeouts = field(default_factory=Timeouts)
    stream: Stream = field(default_factory=Stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """`[auth]`."""

    required: bool = True
    keys_file: str = names.KEYS_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What `keys.toml` allows one key; None: no limit.

    `max_prompt` is a request's body in bytes, `stream_time` the seconds from a call's admission to its end.
    """

    rpm: int | None = None
    tpm: int | None = None
    parallel: int | None = None
    daily_tokens: int | None = None
    monthly_tokens: int | None = None
    max_tokens: int | None = None
    max_prompt: int | None = None
    stream_time: int | None = None
    priority: Priority = "standard"


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """`[audit]`."""

    enabled: bool = True
    directory: str = names.AUDIT
    retention: float = 90 * 86400.0
    log_prompts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """`[supervisor.hang]`, seconds; `canary_after` None is "off"."""

    suspect: float = 30.0
    confirm: float = 90.0
    confirm_blind: float = 240.0
    confirm_idle_gpu: float = 120.0
    long_step: float = 600.0
    compile_allowance: float = 900.0
    grammar_allowance: float = 180.0
    startup_limit: float = 3600.0
    canary_after: float | None = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """`[supervisor.restart]`."""

    budget: int = 5
    window: float = 3600.0
    backoff: float = 5.0
    backoff_max: float = 300.0
    oom_ladder: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """`[supervisor]`."""

    interval: float = 2.0
    mode: Literal["act", "observe"] = "act"
    hang: Hang = field(default_factory=Hang)
    restart: Restart = field(default_factory=Restart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """`[runtime]`; an empty version is the one this release was tested with."""

    version: str = ""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    index_url: str = ""
    wheelhouse: str = ""

    @property
    def wheelhouses(self) -> tuple[str, ...]:
        """The directories of `wheelhouse`, which separates them by colons."""
        return tuple(part for part in self.wheelhouse.split(":") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """`[models]`."""

    directory: str = names.MODELS
    source: Literal["huggingface", "modelscope"] = "huggingface"
    endpoint: str = ""
    token_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """`[network]`: how downloads reach the outside."""

    https_proxy: str = ""
    no_proxy: str = ""
    ca_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One `[[engine]]`. `vllm` holds vLLM's own flags, snake_case, as TOML gave them and already checked."""

    name: str = "default"
    model: str = "builtin:smollm2-135m"
    served_names: tuple[str, ...] = ()
    gpus: Auto | tuple[int | str, ...] = "auto"
    replicas: int = 1
    shm_size: int | Auto = "auto"
    memory_max: int | None = None
    priority: int = 0
    startup_timeout: float = 3600.0
    standby: bool | Auto = "auto"
    min_model_len: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    remote: tuple[str, ...] = ()
    remote_api_key_file: str = ""
    vllm: Mapping[str, object] = field(default_factory=dict)

    @property
    def instances(self) -> tuple[str, ...]:
        """The replicas' names: local ones are unit instances, remote ones are one for each URL."""
        return names.instances(self.name, len(self.remote) or self.replicas)

    @property
    def served(self) -> tuple[str, ...]:
        """The `model` strings a client may send for this engine, LoRA adapters aside."""
        return self.served_names or (names.default_served_name(self.model),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole file with its drop-ins."""

    gateway: Gateway = field(default_factory=Gateway)
    auth: Auth = field(default_factory=Auth)
    audit: Audit = field(default_factory=Audit)
    supervisor: Supervisor = field(default_factory=Supervisor)
    runtime: Runtime = field(default_factory=Runtime)
    models: Models = field(default_factory=Models)
    network: Network = field(default_factory=Network)
    engines: tuple[Engine, ...] = (Engine(),)

    def engine_of(self, instance: str) -> Engine | None:
        """The engine that an instance name is a replica of."""
        return next((engine for engine in self.engines if instance in engine.instances), None)

    @property
    def local_instances(self) -> tuple[str, ...]:
        """Instances that run on this machine, in start order: lower `priority` first, then as in the file."""
        ordered = sorted((e for e in self.engines if not e.remote), key=lambda e: e.priority)
        return tuple(instance for engine in ordered for instance in engine.instances)
