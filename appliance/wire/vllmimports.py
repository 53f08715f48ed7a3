"""The modules of vLLM 0.32 that a standby imports, so that the processes forked from it find them.

What `vllm serve` imports in its three processes for a model that generates text. A name that another version does not
have is passed over there, and what is missing here is imported by the process that needs it: both cost time alone.
"""

from __future__ import annotations

_API = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.v1.engine.async_llm",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.download_kernels",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.preload",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.snapshot",
    "vllm.plugins.lora_resolvers.filesystem_resolver",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
    "vllm.renderers.hf",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.instrumentator.offline_docs",
    "vllm.entrypoints.serve.lora.api_router",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router",
    "vllm.entrypoints.serve.utils.fingerprint",
    "vllm.entrypoints.openai.models.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.chat_completion.batch_serving",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "model_hosting_container_standards.sagemaker",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
    "uvicorn.lifespan.on",
    "anyio._backends._asyncio",
)
_CORE = ("vllm.v1.engine.core", "vllm.v1.core.sched.scheduler", "setproctitle")
_WORKER = {
    "cpu": (
        "vllm.v1.worker.cpu_worker",
        "vllm.v1.attention.backends.cpu_attn",
        "vllm.utils.cpu_triton_utils",
        "vllm.triton_utils.dispatcher",
    ),
    "cuda": ("vllm.v1.worker.gpu_worker",),
}
_EVERY_WORKER = ("vllm.distributed.elastic_ep.elastic_execute", "vllm.model_executor.layers.quantization.online.base")

# What vLLM puts into the environment of its children before they import anything, and what is read at an import.
LOADING = {"cpu": {"TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"}, "cuda": {}}

# Where vLLM's CPU platform finds the OpenMP library that it names in LD_PRELOAD, below the runtime; the first counts.
OPENMP = ("lib/python3*/site-packages/torch.libs/libgomp*.so*", "lib/python3*/site-packages/torch/lib/libgomp*.so*")


def imports(device: str) -> tuple[str, ...]:
    """The modules for one device, the first of which must be there."""
    return (*_API, *_CORE, *_WORKER[device], *_EVERY_WORKER)
