"""vLLM's own figures at start, as people published them, each with the facts of the model that they depend on.

Facts, not files: the figures of a config.json that decide memory, and the parameters that the model's page names. `kv`
is "Available KV cache memory" in GiB, `tokens` "GPU KV cache size", `weights` "Model loading took" in GiB on each GPU,
`needs` the "GiB KV cache is needed" of a refusal, `longest` its "estimated maximum model length".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BF16 = {"torch_dtype": "bfloat16"}


def attention(family: str, layers: int, hidden: int, heads: int, kv: int, dim: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "max_position_embeddings": 131072,
        "vocab_size": 151936,
        **BF16,
        **more,
    }


LLAMA3_8B = attention("llama", 32, 4096, 32, 8, 128, intermediate_size=14336, vocab_size=128256,
                      max_position_embeddings=8192)  # fmt: skip
QWEN25_7B_BNB = attention(
    "qwen2", 28, 3584, 28, 4, 128, intermediate_size=18944, vocab_size=152064, max_position_embeddings=32768,
    quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
)  # fmt: skip
LLAMA2_7B = attention("llama", 32, 4096, 32, 32, 128, intermediate_size=11008, vocab_size=32000,
                      max_position_embeddings=4096)  # fmt: skip
LLAMA_8B = attention("llama", 32, 4096, 32, 8, 128, intermediate_size=14336, vocab_size=128256)
QWEN3_14B = attention("qwen3", 40, 5120, 40, 8, 128, intermediate_size=17408, max_position_embeddings=40960)
R1_QWEN_14B = attention("qwen2", 48, 5120, 40, 8, 128, intermediate_size=13824, vocab_size=152064)
QWEN3_VL = {  # 4B and 8B keep the same
    "model_type": "qwen3_vl",
    "vision_config": {"depth": 27},
    "text_config": attention("qwen3_vl_text", 36, 4096, 32, 8, 128, max_position_embeddings=262144),
}
QWEN3_30B = attention(
    "qwen3_moe", 48, 2048, 32, 4, 128, intermediate_size=6144, num_experts=128, num_experts_per_tok=8,
    moe_intermediate_size=768, max_position_embeddings=40960,
)  # fmt: skip
QWEN3_CODER_30B_FP8 = {
    **QWEN3_30B,
    "max_position_embeddings": 262144,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
QWEN3_CODER_480B_FP8 = attention(
    "qwen3_moe", 62, 6144, 96, 8, 128, num_experts=160, num_experts_per_tok=8, moe_intermediate_size=2560,
    max_position_embeddings=262144, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip
QWEN3_235B_FP8 = attention(
    "qwen3_moe", 94, 4096, 64, 4, 128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536,
    max_position_embeddings=40960, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
)  # fmt: skip
GPT_OSS_120B = attention(
    "gpt_oss", 36, 2880, 64, 8, 64, vocab_size=201088, intermediate_size=2880, num_local_experts=128,
    num_experts_per_tok=4, sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 18,
    quantization_config={"quant_method": "mxfp4"},
)  # fmt: skip
DEEPSEEK_V2_LITE = attention(
    "deepseek_v2", 27, 2048, 16, 16, 128, kv_lora_rank=512, qk_rope_head_dim=64, n_routed_experts=64,
    num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1,
    intermediate_size=10944, vocab_size=102400, max_position_embeddings=163840,
)  # fmt: skip
MISTRAL_SMALL_4 = attention(
    "mistral4", 36, 4096, 32, 32, 128, kv_lora_rank=256, qk_rope_head_dim=64, max_position_embeddings=1048576,
)  # fmt: skip
KIMI_LINEAR = attention(
    "kimi_linear", 27, 2304, 32, 32, 72, kv_lora_rank=512, qk_rope_head_dim=64, max_position_embeddings=1048576,
    linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                        "short_conv_kernel_size": 4},
)  # fmt: skip


def delta(layers: int, hidden: int, heads: int, kv: int, values: int) -> dict[str, Any]:
    """Qwen3.5 and its successors: three of four layers are Gated DeltaNet."""
    own = attention(
        "qwen3_5_text", layers, hidden, heads, kv, 256, full_attention_interval=4, linear_num_key_heads=16,
        linear_num_value_heads=values, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
        mamba_ssm_dtype="float32", max_position_embeddings=262144, vocab_size=248320,
    )  # fmt: skip
    return {"model_type": "qwen3_5", "text_config": own}


QWEN36_27B, QWEN36_35B = delta(64, 5120, 24, 4, 48), delta(40, 2048, 16, 2, 32)


@dataclass(frozen=True)
class Log:
    """One start. `checkpoint`: bytes of its tensors, two for each parameter that its page counts."""

    source: str
    gpu: str
    config: dict[str, Any]
    tp: int = 1
    pp: int = 1
    length: int = 0  # max_model_len
    kv_dtype: str = "auto"
    kv: float | None = None
    tokens: int | None = None
    needs: float | None = None
    longest: int | None = None
    weights: float | None = None
    checkpoint: int | None = None
    batched: int = 2048
    speculative: int = 0
    prefix_caching: bool = True
    notes: dict[str, float] = field(default_factory=dict)  # `total` GiB of the card, `share`, `requests`


LOGS = (
    Log("vllm-project/vllm#10517", "RTX 3090", LLAMA_8B, length=20000, kv=3.81, tokens=1952 * 16, weights=14.9888,
        checkpoint=2 * 8_030_261_248, batched=20000, notes={"total": 23.58, "share": 0.9, "requests": 4}),
    Log("vllm-project/vllm#10517", "RTX 3090", LLAMA_8B, length=29000, kv=2.89, tokens=23648, weights=14.9888,
        checkpoint=2 * 8_030_261_248, batched=29000, notes={"total": 23.58, "share": 0.9, "requests": 4}),
    Log("vllm-project/vllm#10511", "H100", LLAMA3_8B, weights=14.96, checkpoint=2 * 8_030_261_248),
    Log("vllm-project/vllm#10511", "2x H100", LLAMA3_8B, tp=2, weights=7.48, checkpoint=2 * 8_030_261_248),
    Log("vllm-project/vllm#6234", "1 GPU", LLAMA2_7B, weights=12.5562, checkpoint=2 * 6_738_415_616),
    Log("vllm-project/vllm#13882", "RTX 4060", QWEN25_7B_BNB, length=4096, kv=-1.05, weights=5.2032, batched=4096,
        notes={"total": 8.0, "share": 0.7, "requests": 256}),
    Log("LMCache/LMCache#1739", "1 GPU", QWEN3_14B, length=32768, kv=6.51, tokens=42656),
    Log("vllm-project/vllm#13061", "2x RTX 4090", R1_QWEN_14B, tp=2, weights=13.9476, checkpoint=2 * 14_770_033_664),
    Log("vllm-project/vllm#17469", "4x A10", QWEN3_30B, tp=4, length=8192, weights=14.2474,
        checkpoint=2 * 30_532_122_624),
    Log("vllm-project/recipes#12", "8x H20", QWEN3_CODER_480B_FP8, length=262144, kv=48.66, needs=62.0, longest=205728),
    Log("vllm-project/recipes#12", "8x H20", QWEN3_CODER_480B_FP8, length=262144, kv=55.65, needs=62.0, longest=235296),
    Log("vllm-project/vllm#34076", "RTX 5070 Ti + 5090", QWEN3_CODER_30B_FP8, length=262144, kv=3.18, needs=24.0,
        longest=34736),
    Log("vllm-project/vllm#21348", "4x H100", QWEN3_235B_FP8, tp=4, length=40960, kv=8.11, tokens=178880),
    Log("xorbitsai/inference#4926", "1 GPU", QWEN3_VL, length=262144, kv=6.94, needs=36.0, longest=50512),
    Log("vllm-project/vllm#27508", "H100", GPT_OSS_120B, length=131072, kv=1.71, needs=4.54, batched=1024,
        notes={"total": 79.18, "share": 0.95, "requests": 1024}),
    Log("vllm-project/vllm#23278", "H100", GPT_OSS_120B, kv=-2.14, weights=65.9651,
        notes={"total": 79.18, "share": 0.9, "requests": 1024}),
    Log("vllm-project/vllm#4650", "1 GPU", DEEPSEEK_V2_LITE, length=32000, weights=29.3010,
        checkpoint=2 * 15_706_484_224),
    Log("vllm-project/vllm#15871", "2 GPUs", DEEPSEEK_V2_LITE, length=32768, needs=0.95),
    Log("kaito-project/kaito#2132", "H100 NVL", MISTRAL_SMALL_4, length=1048576, kv=17.39, needs=22.5, longest=810208),
    Log("vllm-project/vllm#28228", "2x RTX 3090", KIMI_LINEAR, tp=2, length=120000, kv=2.30, tokens=int(2.48 * 120000),
        prefix_caching=False),
    Log("mitchross/talos-argocd-proxmox#1995", "2x RTX 3090", QWEN36_27B, tp=2, length=131072, kv_dtype="fp8", kv=4.99,
        tokens=302921),
    Log("noonghunna/club-3090#594", "2x RTX 3090", QWEN36_27B, tp=2, length=262144, kv_dtype="fp8", kv=5.33,
        tokens=300220, speculative=3),
    Log("noonghunna/club-3090#642", "2x RTX 3090", QWEN36_27B, tp=2, length=262144, kv_dtype="fp8_e5m2", kv=11.05,
        tokens=623873, speculative=3),
    Log("noonghunna/club-3090#612", "RTX 5090", QWEN36_35B, length=131072, kv_dtype="fp8", kv=5.98, tokens=567978),
    Log("noonghunna/club-3090#652", "RTX 5090", QWEN36_35B, length=131072, kv_dtype="fp8", kv=6.01, tokens=569878),
)  # fmt: skip
