"""Every setting, one row each. The parser, the reference file, the manual, `config explain` and `diff` derive from it.

A path is the dotted key as it stands in the file; below `engine.` it is a key of one `[[engine]]`. `default` is what
`model` holds, in the model's own units (seconds, bytes). Effects:

    live      the process that uses it sees the file change, or reads it the next time it needs it
    reload    the gateway re-reads it without dropping a request
    restart   what depends on it starts anew: the engine, or for `gateway.` the listening sockets
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from appliance import names

Effect = Literal["live", "reload", "restart"]
Kind = Literal[
    "bool", "int", "duration", "size", "str", "path", "choice", "url", "urls", "address", "addresses",
    "networks", "origins", "texts", "gpus", "env", "flags", "name",
]  # fmt: skip

HOUR, DAY = 3600.0, 86400.0
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


class Row(NamedTuple):
    """One setting. `word` is text that stands for no number: ("auto", "auto"), ("off", None), ("", None)."""

    path: str
    kind: Kind
    default: object
    help: str
    example: str  # as TOML, another value than the default
    effect: Effect
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    word: tuple[str, object] | None = None

    @property
    def table(self) -> str:
        """The table that holds the key: `gateway.admission`."""
        return self.path.rpartition(".")[0]

    @property
    def key(self) -> str:
        """The key itself: `queue_size`."""
        return self.path.rpartition(".")[2]


AUTO = ("auto", "auto")

ROWS: tuple[Row, ...] = (
    # --- gateway -------------------------------------------------------------------------------------------------
    Row("gateway.listen", "addresses", ("127.0.0.1:8080",), "Addresses of the public listener, as IP:PORT. "
        "0.0.0.0:8080 opens it to the network.", '["0.0.0.0:8080"]', "restart"),
    Row("gateway.admin_listen", "address", "127.0.0.1:8081", "Address of metrics, status and console. It has no login, "
        "so only loopback is allowed.", '"127.0.0.1:9081"', "restart"),
    Row("gateway.tls_certificate", "path", "", "Certificate chain (PEM) of the public listener; with tls_key the "
        "listener speaks HTTPS.", '"/etc/llm-appliance/tls/chain.pem"', "reload"),
    Row("gateway.tls_key", "path", "", "Private key (PEM) of tls_certificate; the user llm-gateway must be able to "
        "read it.", '"/etc/llm-appliance/tls/key.pem"', "reload"),
    Row("gateway.max_body", "size", 64 * MIB, "The largest request body; a larger one is answered 413.", '"16MiB"',
        "reload", KIB, 4 * GIB),
    Row("gateway.max_bodies", "size", 512 * MIB, "The memory that all request bodies together may take until their "
        "answers begin; then 503 gateway_overloaded.", '"2GiB"', "reload", KIB, TIB),
    Row("gateway.max_connections", "int", 12_000, "Client connections at once; for one more an idle one is closed, "
        "and where none is idle it is answered 503 gateway_overloaded.", "2000", "reload", 1, 1_000_000),
    Row("gateway.trusted_proxies", "networks", (), "Addresses or networks of reverse proxies whose X-Forwarded-For is "
        "believed.", '["10.0.0.0/8"]', "reload"),
    Row("gateway.cors_origins", "origins", (), 'Origins whose pages may call the API from a browser; "*" is any.',
        '["https://chat.example.org"]', "reload"),
    Row("gateway.admission.max_in_flight", "int", "auto", 'Requests at work at once on each engine; "auto" adapts to '
        "what the engine can take, up to its max_num_seqs.", "64", "reload", 1, 100_000, word=AUTO),
    Row("gateway.admission.queue_size", "int", 512, "Requests that may wait; one more is answered 429 queue_full.",
        "128", "reload", 0, 1_000_000),
    Row("gateway.admission.queue_timeout", "duration", 60.0, "The longest wait; then 429 queue_timeout.", '"30s"',
        "reload", 0.1, DAY),
    Row("gateway.timeouts.head", "duration", 20.0, "The longest time in which a client sends a request's head, from "
        "its first byte on; then 400. Also of a TLS handshake.", '"10s"', "reload", 1, 300),
    Row("gateway.timeouts.body", "duration", 30.0, "The longest silence of a client in the middle of a request's body; "
        "then 400. The whole body may take ten times as long.", '"60s"', "reload", 1, HOUR),
    Row("gateway.timeouts.connect", "duration", 5.0, "The longest wait for an engine to accept a connection.", '"2s"',
        "reload", 0.1, 300),
    Row("gateway.timeouts.first_token", "duration", 600.0, "The longest wait for the first token of an answer; then "
        "504 first_token_timeout.", '"300s"', "reload", 1, DAY),
    Row("gateway.timeouts.stall", "duration", 120.0, "The longest silence between two events of one stream; then the "
        "error event stream_stalled.", '"60s"', "reload", 1, DAY),
    Row("gateway.timeouts.drain", "duration", 60.0, "How long a restart of the gateway waits for running requests; "
        "streams that last longer end with an error event.", '"5m"', "reload", 0, HOUR),
    Row("gateway.stream.keepalive", "duration", 10.0, "Silence on a stream that is filled with an SSE comment.",
        '"5s"', "reload", 0.1, 600),
    # --- auth and audit ------------------------------------------------------------------------------------------
    Row("auth.required", "bool", True, "Whether a key is needed. Without keys the public listener must be loopback.",
        "false", "reload"),
    Row("auth.keys_file", "path", names.KEYS_FILE, "Where `llm-appliance keys` keeps the hashed keys.",
        '"/srv/llm/keys.toml"', "reload"),
    Row("audit.enabled", "bool", True, "Whether every request leaves a line in the usage ledger.", "false", "reload"),
    Row("audit.directory", "path", names.AUDIT, "Directory of the usage ledger; llm-gateway must be able to write it.",
        '"/srv/llm/audit"', "reload"),
    Row("audit.retention", "duration", 90 * DAY, "How long ledger lines are kept.", '"365d"', "reload", HOUR,
        3650 * DAY),
    Row("audit.log_prompts", "bool", False, "Without effect in this version: the ledger never holds prompts or "
        "answers.", "true", "reload"),
    # --- supervisor ----------------------------------------------------------------------------------------------
    Row("supervisor.interval", "duration", 2.0, "Time between two observations.", '"5s"', "live", 0.1, 60),
    Row("supervisor.mode", "choice", "act", 'What follows a verdict: "act", or "observe": judge and log, touch '
        "nothing.", '"observe"', "live", choices=("act", "observe")),
    Row("supervisor.hang.suspect", "duration", 30.0, "Silence of an engine with work after which it is suspected.",
        '"20s"', "live", 1, DAY),
    Row("supervisor.hang.confirm", "duration", 90.0, "Silence after which a hang is certain when a second witness "
        "(GPU, log) agrees; a start whose ranks do not find one another hangs after twice that.", '"60s"', "live", 1,
        DAY),
    Row("supervisor.hang.confirm_blind", "duration", 240.0, "Silence after which a hang is certain without usable "
        "telemetry. Below vLLM's own 300s, so that evidence is taken first.", '"280s"', "live", 1, DAY),
    Row("supervisor.hang.confirm_idle_gpu", "duration", 120.0, "Silence after which a hang is certain while the GPUs "
        "idle: scheduler deadlock, livelock.", '"180s"', "live", 1, DAY),
    Row("supervisor.hang.long_step", "duration", 600.0, "Silence that is allowed while the GPUs draw serving power.",
        '"20m"', "live", 1, DAY),
    Row("supervisor.hang.compile_allowance", "duration", 900.0, "Silence that is allowed while kernels are compiled.",
        '"30m"', "live", 1, DAY),
    Row("supervisor.hang.grammar_allowance", "duration", 180.0, "Silence that is allowed while a grammar or JSON "
        "schema is compiled.", '"5m"', "live", 1, DAY),
    Row("supervisor.hang.startup_limit", "duration", HOUR, "The longest start of an engine before it counts as hung.",
        '"2h"', "live", 10, 7 * DAY),
    Row("supervisor.hang.canary_after", "duration", 300.0, 'Idle time after which a one-token request asks whether '
        'the engine still works; "off" never asks.', '"10m"', "live", 10, DAY, word=("off", None)),
    Row("supervisor.restart.budget", "int", 5, "Restarts of one engine within window; then it is held.", "3", "live",
        0, 1000),
    Row("supervisor.restart.window", "duration", HOUR, "The time over which restarts are counted.", '"2h"', "live",
        60, 7 * DAY),
    Row("supervisor.restart.backoff", "duration", 5.0, "Wait before a restart; it doubles up to backoff_max. "
        "It counts from when the engine began to serve: one that served for longer is restarted at once.", '"10s"',
        "live", 0, HOUR),
    Row("supervisor.restart.backoff_max", "duration", 300.0, "The longest wait before a restart.", '"10m"', "live", 0,
        DAY),
    Row("supervisor.restart.oom_ladder", "bool", True, "Whether an engine that ran out of GPU memory comes back with "
        "smaller settings.", "false", "live"),
    # --- runtime, models, network --------------------------------------------------------------------------------
    Row("runtime.version", "str", "", "Version of vLLM; empty is the one this release was tested with.", '"0.32.0"',
        "restart"),
    Row("runtime.device", "choice", "auto", 'Build of vLLM: "cuda", "cpu", or "auto": CUDA where an NVIDIA driver '
        "is.", '"cpu"', "restart", choices=("auto", "cuda", "cpu")),
    Row("runtime.index_url", "url", "", "Mirror of the Python package index.", '"https://mirror.example.org/simple"',
        "live"),
    Row("runtime.wheelhouse", "path", "", "Directory of wheels, or several with colons between, asked before the "
        "index: with all wheels in it no network is needed.",
        '"/srv/wheels"', "live"),
    Row("models.directory", "path", names.MODELS, "Where model files are kept; llm-runtime writes it.",
        '"/srv/models"', "restart"),
    Row("models.source", "choice", "huggingface", "Hub that model ids belong to.", '"modelscope"', "restart",
        choices=("huggingface", "modelscope")),
    Row("models.endpoint", "url", "", "Mirror of the hub.", '"https://hub.example.org"', "live"),
    Row("models.token_file", "path", "", "File with the hub's access token, for models that need one; llm-runtime "
        "must be able to read it.", '"/etc/llm-appliance/hub.token"', "live"),
    Row("network.https_proxy", "url", "", "Proxy for downloads.", '"http://proxy.example.org:3128"', "live"),
    Row("network.no_proxy", "str", "", "Hosts that are reached without the proxy, separated by commas.",
        '"localhost,.example.org"', "live"),
    Row("network.ca_file", "path", "", "Certificates (PEM) that downloads trust besides the system's.",
        '"/etc/ssl/certs/company.pem"', "live"),
    # --- engines -------------------------------------------------------------------------------------------------
    Row("engine.name", "name", "default", "Name of the engine and of its unit llm-engine@NAME; replica n is NAME-n. "
        "Lower-case letters, digits and dashes.", '"chat"', "restart"),
    Row("engine.model", "str", "builtin:smollm2-135m", "A hub id, a directory, or builtin:smollm2-135m (chat) or "
        "builtin:minilm-l6-v2 (embeddings).", '"Qwen/Qwen2.5-14B-Instruct-AWQ"', "restart"),
    Row("engine.served_names", "texts", (), "Names that clients may send as `model`; by default the last part of "
        "model.", '["chat", "gpt-4o"]', "restart"),
    Row("engine.gpus", "gpus", "auto", '"auto", indexes like [0, 1], UUIDs like ["GPU-..."], or [] for CPU. Replicas '
        "split the list.", "[0, 1]", "restart", word=AUTO),
    Row("engine.replicas", "int", 1, "How many of it run.", "2", "live", 1, 64),
    Row("engine.shm_size", "size", "auto", 'Size of the engine\'s private /dev/shm; "auto" is half of the memory with '
        "GPUs, 2GiB on CPU.", '"16GiB"', "restart", 64 * MIB, 16 * TIB, word=AUTO),
    Row("engine.memory_max", "size", None, "Limit of host memory, /dev/shm included; empty is none.", '"64GiB"',
        "restart", 512 * MIB, 64 * TIB, word=("", None)),
    Row("engine.priority", "int", 0, "Start order of engines that share a GPU: lower first.", "10", "live", -1000,
        1000),
    Row("engine.startup_timeout", "duration", HOUR, "The longest start before it is given up.", '"30m"', "live", 30,
        7 * DAY),
    Row("engine.standby", "bool", "auto", "Whether vLLM's processes are forked from one that has imported its modules "
        'instead of importing them one after the other, so that starts are faster. "auto" is true on a CPU, else '
        "false; with GPUs it has not been tried, and vLLM starts as before where a module has opened one.", "true",
        "restart", word=AUTO),
    Row("engine.min_model_len", "int", 0, "The shortest context to which max_model_len may be lowered when the KV "
        "cache cannot hold one request of its length; 0 leaves it and holds the engine.", "8192", "live", 0,
        100_000_000),
    Row("engine.env", "env", {}, "Extra environment of the engine.", '{ NCCL_P2P_DISABLE = "1" }', "restart"),
    Row("engine.remote", "urls", (), "Base URLs of engines elsewhere, each a replica, instead of one that runs here.",
        '["http://10.0.0.7:8000"]', "reload"),
    Row("engine.remote_api_key_file", "path", "", "File with the key that the remote engines want; llm-gateway must "
        "be able to read it.", '"/etc/llm-appliance/remote.key"', "reload"),
    Row("engine.vllm", "flags", {}, "vLLM's own flags in vLLM's own names, checked against the version in use.",
        "{ max_model_len = 8192, enforce_eager = true }", "restart"),
)  # fmt: skip

BY_PATH: dict[str, Row] = {row.path: row for row in ROWS}

# What each table is about, in file order; `engine` may be there several times, as [[engine]].
TABLES: dict[str, str] = {
    "gateway": "The HTTP process in front.",
    "gateway.admission": "Which requests may enter, and how long they may wait.",
    "gateway.timeouts": "The longest waits of one request.",
    "gateway.stream": "Answers by server-sent events.",
    "auth": "API keys.",
    "audit": "The usage ledger.",
    "supervisor": "The process that observes, judges and restarts.",
    "supervisor.hang": "When silence is a hang.",
    "supervisor.restart": "How often and how fast an engine is restarted.",
    "runtime": "The vLLM environment.",
    "models": "Where models come from and lie.",
    "network": "How downloads reach the outside.",
    "engine": "One model served by vLLM; write [[engine]], once for each.",
}


def keys_of(table: str) -> dict[str, Row | None]:
    """Everything that may stand in a table: a row for a setting, None for a table. The top is the empty path."""
    found: dict[str, Row | None] = {row.key: row for row in ROWS if row.table == table}
    found |= {name.rpartition(".")[2]: None for name in TABLES if name.rpartition(".")[0] == table}
    return found
