"""vLLM flags that guides still use and vLLM no longer knows, and those that the appliance keeps for itself.

vLLM's parser ends the process at an unknown flag, so none of these may be passed on. A dropped or renamed flag becomes
what it means today, with a warning; a flag that would blind or open the appliance is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Flags = dict[str, object]


class Legacy(NamedTuple):
    """`now` gives the flags that stand for the old one (none: dropped); `reason` is what the operator reads."""

    reason: str
    now: Callable[[object], Flags]


def dropped(reason: str) -> Legacy:
    """A flag that has nothing to stand for it."""
    return Legacy(f"{reason}; it is left out", lambda value: {})


def renamed(flag: str) -> Legacy:
    """A flag with a new name and the same values."""
    return Legacy(f"vLLM calls this {flag} now; it is passed on under that name", lambda value: {flag: value})


def nested(flag: str, key: str) -> Legacy:
    """A flag that became a key of a JSON-valued one."""
    return Legacy(
        f"vLLM takes this as {key} inside {flag} now; it is passed on there", lambda value: {flag: {key: value}}
    )


_TASKS: Mapping[str, Flags] = {
    "auto": {},
    "generate": {"runner": "generate"},
    "transcription": {"runner": "generate"},
    "draft": {"runner": "draft"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling", "convert": "classify"},
    "reward": {"runner": "pooling"},
    "pooling": {"runner": "pooling"},
}
_V1 = "vLLM's present engine has no such setting"

LEGACY: Mapping[str, Legacy] = {
    "swap_space": dropped(
        "vLLM has no swap space any more (a preempted request is computed again); kv_offloading_size puts KV cache "
        "into host memory"
    ),
    "disable_log_requests": dropped("vLLM logs no requests unless told to"),
    "task": Legacy(
        "vLLM takes runner (and convert) instead of task; it is passed on that way",
        lambda value: dict(_TASKS.get(value, {})) if isinstance(value, str) else {},
    ),
    "device": dropped("[runtime] device and the engine's gpus choose the device"),
    "guided_decoding_backend": nested("structured_outputs_config", "backend"),
    "guided_decoding_disable_fallback": nested("structured_outputs_config", "disable_fallback"),
    "guided_decoding_disable_any_whitespace": nested("structured_outputs_config", "disable_any_whitespace"),
    "guided_decoding_disable_additional_properties": nested(
        "structured_outputs_config", "disable_additional_properties"
    ),
    "num_scheduler_steps": dropped(f"{_V1}: async_scheduling took its place"),
    "multi_step_stream_outputs": dropped(_V1),
    "preemption_mode": dropped(f"{_V1}: a preempted request is always computed again"),
    "scheduler_delay_factor": dropped(_V1),
    "max_seq_len_to_capture": dropped(f"{_V1}: max_cudagraph_capture_size counts sequences, not tokens"),
    "max_context_len_to_capture": dropped(f"{_V1}: max_cudagraph_capture_size counts sequences, not tokens"),
    "cuda_graph_sizes": renamed("cudagraph_capture_sizes"),
    "use_v2_block_manager": dropped(_V1),
    "num_lookahead_slots": dropped(_V1),
    "disable_async_output_proc": dropped(_V1),
    "disable_frontend_multiprocessing": dropped(_V1),
    "max_num_partial_prefills": dropped(_V1),
    "max_long_partial_prefills": dropped(_V1),
    "engine_use_ray": dropped(_V1),
    "worker_use_ray": Legacy(
        "vLLM takes distributed_executor_backend instead; it is passed on that way",
        lambda value: {"distributed_executor_backend": "ray"} if value is True else {},
    ),
    "tokenizer_pool_size": dropped(_V1),
    "tokenizer_pool_type": dropped(_V1),
    "tokenizer_pool_extra_config": dropped(_V1),
    "speculative_model": nested("speculative_config", "model"),
    "num_speculative_tokens": nested("speculative_config", "num_speculative_tokens"),
    "ngram_prompt_lookup_max": nested("speculative_config", "prompt_lookup_max"),
    "ngram_prompt_lookup_min": nested("speculative_config", "prompt_lookup_min"),
    "speculative_draft_tensor_parallel_size": nested("speculative_config", "draft_tensor_parallel_size"),
    "rope_scaling": nested("hf_overrides", "rope_scaling"),
    "rope_theta": nested("hf_overrides", "rope_theta"),
    "enable_reasoning": dropped("reasoning_parser alone turns reasoning output on"),
    "override_pooler_config": renamed("pooler_config"),
    "disable_mm_preprocessor_cache": Legacy(
        "vLLM takes mm_processor_cache_gb = 0 instead; it is passed on that way",
        lambda value: {"mm_processor_cache_gb": 0} if value is True else {},
    ),
    "enable_prompt_adapter": dropped("vLLM has no prompt adapters any more"),
    "max_prompt_adapters": dropped("vLLM has no prompt adapters any more"),
    "max_prompt_adapter_token": dropped("vLLM has no prompt adapters any more"),
    "lora_extra_vocab_size": dropped("vLLM's adapters add no vocabulary any more"),
    "long_lora_scaling_factors": dropped("vLLM has no long LoRA any more"),
    "qlora_adapter_name_or_path": dropped("lora_modules loads adapters"),
    "logits_processor_pattern": dropped("logits_processors names the classes to load"),
}

_SOCKET = "an engine listens on its own unix socket, which only the gateway may open"
_BLIND = "the supervisor sees a hang by these figures"
_PROMPTS = "it would write what people ask and are answered into the journal"

# flag -> (why it is refused, what to do instead)
REFUSED: Mapping[str, tuple[str, str]] = {
    "host": (_SOCKET, "set [gateway] listen"),
    "port": (_SOCKET, "set [gateway] listen"),
    "uds": (_SOCKET, "leave it out"),
    "grpc": (_SOCKET, "leave it out"),
    "grpc_port": (_SOCKET, "leave it out"),
    "headless": (f"{_SOCKET}, and a headless one has none", "leave it out"),
    "root_path": (_SOCKET, "leave it out"),
    "ssl_keyfile": (_SOCKET, "set [gateway] tls_key"),
    "ssl_certfile": (_SOCKET, "set [gateway] tls_certificate"),
    "ssl_ca_certs": (_SOCKET, "leave it out"),
    "ssl_cert_reqs": (_SOCKET, "leave it out"),
    "ssl_ciphers": (_SOCKET, "leave it out"),
    "enable_ssl_refresh": (_SOCKET, "leave it out"),
    "data_parallel_multi_port_external_lb": (_SOCKET, "use replicas"),
    "data_parallel_supervisor_port": (_SOCKET, "use replicas"),
    "api_key": ("the gateway checks keys, and an argument shows in ps", "use llm-appliance keys"),
    "hf_token": ("an argument shows in ps", "set [models] token_file"),
    "disable_log_stats": (f"it turns vLLM's figures off, and {_BLIND}", "leave it out"),
    "sse_keep_alive_interval": ("bytes that are no progress would hide a stall", "set [gateway.stream] keepalive"),
    "log_config_file": ("the launcher reads vLLM's log as it comes", "leave it out"),
    "logging_config": ("the launcher reads vLLM's log as it comes", "leave it out"),
    "config": ("a second file would hide flags from this check", "write its flags here"),
    "enable_log_requests": (_PROMPTS, "leave it out"),
    "enable_log_outputs": (_PROMPTS, "leave it out"),
    "middleware": ("foreign code in the engine's HTTP server would go past the gateway's rules", "leave it out"),
    "model": ("the engine's own key names the model", "set model in [[engine]]"),
    "model_tag": ("the engine's own key names the model", "set model in [[engine]]"),
    "served_model_name": ("the engine's own key holds the names", "set served_names in [[engine]]"),
    "download_dir": ("models are fetched by llm-runtime, engines run offline", "set [models] directory"),
    "device_ids": ("the engine's own key chooses the GPUs", "set gpus in [[engine]]"),
}
