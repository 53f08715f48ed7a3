"""Every path, unit, socket, user and environment name that the outside or another process relies on, once.

A path that depends on an instance is a function. Nothing here touches the disk.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

# --- configuration ---------------------------------------------------------------------------------------------
CONFIG_FILE = "/etc/llm-appliance/config.toml"
LAST_GOOD_NAME = "last-good.toml"  # beside the configuration file
REJECTED_NAME = "rejected.json"  # beside it: settings that were applied and rolled back
DROPIN_DIRECTORY = "config.d"  # beside the configuration file
KEYS_FILE = "/etc/llm-appliance/keys.toml"

# --- state that outlives a reboot --------------------------------------------------------------------------------
STATE = "/var/lib/llm-appliance"
RUNTIMES = f"{STATE}/runtimes"
CURRENT_RUNTIME = f"{RUNTIMES}/current"
RUNTIME_COMPLETE = ".complete"  # in a runtime or a model directory: written last
MODELS = f"{STATE}/models"
INCIDENTS = f"{STATE}/incidents"
SUPERVISOR_STATE = f"{STATE}/supervisor"
HOLDS = f"{SUPERVISOR_STATE}/holds"  # a file NAME here holds the engine; the unit's ConditionPathExists reads it
RUNGS = f"{SUPERVISOR_STATE}/rungs"  # NAME.json: what the supervisor changes about the engine's next start
RESTART_LEDGER = f"{SUPERVISOR_STATE}/ledger.json"
RECOVERIES = f"{SUPERVISOR_STATE}/recoveries"  # a file NAME here: that engine is being taken down
LEARNED = f"{SUPERVISOR_STATE}/learned.json"  # how engines' GPUs look when they work
PLAN_ERRORS = f"{SUPERVISOR_STATE}/planerrors.json"  # how far plans were from what vLLM found
GATEWAY_STATE = f"{STATE}/gateway"
KEY_USE = f"{GATEWAY_STATE}/use.json"  # tokens of the day and the month, for each key
CACHE = "/var/cache/llm-appliance"
COMPILED = "compiled"  # below an engine's own cache: a directory for each runtime, GPU and model
AUDIT = "/var/log/llm-appliance/audit"

# Trees that the units' sandboxes replace by empty ones; what is needed from them is mounted.
HOMES = ("/home", "/root", "/run/user")
HIDDEN = (*HOMES, "/tmp", "/var/tmp")

# --- live state, one writer each -----------------------------------------------------------------------------------
RUN = "/run/llm-appliance"
ENGINES_RUN = f"{RUN}/engines"
RUNTIME_STATE = f"{RUN}/runtime/state.json"  # written by llm-runtime
FLEET_STATE = f"{RUN}/supervisor/fleet.json"  # written by the supervisor
GPU_STATE = f"{RUN}/supervisor/gpus.json"  # written by the supervisor
SUPERVISOR_SOCKET = f"{RUN}/supervisor/control.sock"
GATEWAY_SOCKET = f"{RUN}/gateway/control.sock"
GATEWAY_HANDOVER_SOCKET = f"{RUN}/gateway/handover.sock"
UNITCTL_SOCKET = f"{RUN}/unitctl.sock"

# --- processes -------------------------------------------------------------------------------------------------------
STANDBY_PROCESS = "llm-standby"  # how the processes that vLLM's are forked from call themselves

# --- units -----------------------------------------------------------------------------------------------------------
TARGET = "llm-appliance.target"
GATEWAY_UNIT = "llm-gateway.service"
GATEWAY_SOCKET_UNIT = "llm-gateway.socket"
GATEWAY_ADMIN_SOCKET_UNIT = "llm-gateway-admin.socket"
SUPERVISOR_UNIT = "llm-supervisor.service"
RUNTIME_UNIT = "llm-runtime.service"
CONFIG_CHECK_UNIT = "llm-config-check.service"
CONFIG_CHECK_PATH_UNIT = "llm-config-check.path"
UNITCTL_SOCKET_UNIT = "llm-unitctl.socket"
GENERATED = "/run/systemd/generator"  # where systemd keeps what our generator writes

# --- users -----------------------------------------------------------------------------------------------------------
GATEWAY_USER, ENGINE_USER, SUPERVISOR_USER, RUNTIME_USER = (
    "llm-gateway",
    "llm-engine",
    "llm-supervisor",
    "llm-runtime",
)
GROUP = "llm-appliance"

# --- exit statuses of the launcher; anything else is the launcher's own crash ----------------------------------------
LAUNCHER_STOPPED = 0  # asked to stop, and stopped
LAUNCHER_ENGINE_DIED = 71  # it served, then died (whatever status vLLM gave)
LAUNCHER_START_FAILED = 72  # it never served
LAUNCHER_CONFIG = 78  # it will not get better by itself; RestartPreventExitStatus= names it
ANOTHER_RUN = "another run has begun"  # a launcher, asked about one that is not its own

INSTANCE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_command(file: str) -> str:
    """The command that names every problem of a configuration file."""
    return "llm-appliance check" if file == CONFIG_FILE else f"llm-appliance check {shlex.quote(file)}"


def engine_unit(instance: str) -> str:
    """The unit of one replica, e.g. `llm-engine@chat-2.service`."""
    return f"llm-engine@{instance}.service"


def instance_of(unit: str) -> str | None:
    """The instance that an engine unit's name holds; None for any other unit or a name we would not have made."""
    if not (unit.startswith("llm-engine@") and unit.endswith(".service")):
        return None
    instance = unit[len("llm-engine@") : -len(".service")]
    return instance if INSTANCE.fullmatch(instance) else None


def run_name(invocation: str, again: int) -> str:
    """One run of vLLM: systemd's name of the unit's run, with the number of the runs before it in that one."""
    return f"{invocation}.{again}" if invocation and again > 0 else invocation


def invocation_of(run: str) -> str:
    """systemd's name in the name of a run."""
    return run.partition(".")[0]


def is_again(run: str) -> bool:
    """Whether a run followed another one in its unit's."""
    return "." in run


def instances(engine: str, replicas: int) -> tuple[str, ...]:
    """Instance names of an engine's replicas: `chat`, `chat-2`, `chat-3`."""
    return (engine, *(f"{engine}-{n}" for n in range(2, replicas + 1)))


def engine_directory(instance: str, run: str = RUN) -> str:
    """The engine's own directory below /run: its socket, its state and its last verdict."""
    return f"{run}/engines/{instance}"


def engine_socket(instance: str, run: str = RUN) -> str:
    """vLLM's own socket."""
    return f"{engine_directory(instance, run)}/vllm.sock"


def engine_state(instance: str, run: str = RUN) -> str:
    """What the launcher says of itself, JSON, replaced atomically."""
    return f"{engine_directory(instance, run)}/state.json"


def engine_verdict(instance: str, run: str = RUN) -> str:
    """How the last run ended, JSON, written by the launcher on exit."""
    return f"{engine_directory(instance, run)}/verdict.json"


def engine_rung(instance: str, run: str = RUN) -> str:
    """What the unit's set-up copied here of `RUNGS`, which the sandbox hides from the engine."""
    return f"{engine_directory(instance, run)}/rung.json"


def engine_evidence(instance: str, run: str = RUN) -> str:
    """Where the launcher is asked for evidence; its directory keeps the gateway out."""
    return f"{engine_directory(instance, run)}/launcher/evidence.sock"


def is_builtin(model: str) -> bool:
    """Whether a model is one that a Python package carries (`builtin:NAME`)."""
    return model.startswith("builtin:")


WITHOUT_WEIGHTS = "~files"  # behind the name of a repository of which the weights are not fetched


def model_directory(model: str, models: str = MODELS, source: str = "huggingface") -> str:
    """Where a model's files lie: a directory is itself, a builtin or a hub's reference has its place below `models`."""
    if model.startswith("/"):
        return model
    if is_builtin(model):
        return f"{models}/builtin/{model[len('builtin:') :]}"
    return f"{models}/{source}/{model}"


def default_served_name(model: str) -> str:
    """The name a model is served under when the file gives none: its last part, `builtin:` left out."""
    return PurePosixPath(model[len("builtin:") :] if is_builtin(model) else model).name
