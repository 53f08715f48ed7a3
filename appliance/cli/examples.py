"""Commands as one gives them: what `VERB --help` ends with. Each is read by its verb's own parser in the tests."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "status": ("status", "status --json | jq .engines", "status --watch 10"),
    "top": ("top", "top --interval 10"),
    "check": ("check", "check ./config.toml"),
    "config": (
        "config show --effective",
        "config explain gateway.listen",
        "config import docker-compose.yml",
        "config import --write start-vllm.sh",
    ),
    "doctor": ("doctor", "doctor --all", "doctor --deep --write", "doctor --through https://llm.example.com/v1"),
    "apply": ("apply --dry-run", "apply", "apply --yes --no-rollback"),
    "keys": (
        "keys create alice",
        "keys create nightly --models chat --class batch --daily-tokens 2000000",
        "keys list",
        "keys rotate alice --overlap 7d",
        "keys revoke alice",
    ),
    "audit": ("audit show --sum --since 7d", "audit show --key alice", "audit verify"),
    "plan": (
        "plan",
        'plan --model Qwen/Qwen3-14B --gpus "2x RTX 4090"',
        "plan --model /srv/models/x --gpus L40S --max-model-len 64K --json",
    ),
    "models": ("models list", "models pull Qwen/Qwen3-8B", "models rm Qwen/Qwen3-8B"),
    "runtime": ("runtime list", "runtime install", "runtime rollback"),
    "bench": (
        "bench --target-ttft 1s --target-itl 50ms --plot ladder.svg",
        "bench --input-tokens 4000 --shared-prefix 3500 --concurrency 1,8,32",
        "bench --url http://10.0.0.7:8000 --chat --json",
        "bench --tune",
        "bench --concurrency 16 --requests 200 --seed 1",
    ),
    "chat": ("chat", "chat --model chat 'What is the capital of France?'"),
    "logs": ("logs -f", "logs chat -n 200", "logs chat -x"),
    "incidents": ("incidents", "incidents 20261129T173000Z-chat-engine-died", "incidents --json"),
    "report": ("report", "report --output /tmp/for-the-bug-report.tar.gz"),
    "replay": (
        "replay /var/lib/llm-appliance/incidents/ID/timeline.jsonl",
        "replay timeline.jsonl --set supervisor.hang.confirm=60s",
    ),
    "hold": ("hold chat --reason 'new power supply'",),
    "resume": ("resume chat --wait",),
    "drain": ("drain chat-2 --reason 'new fan'",),
    "undrain": ("undrain chat-2",),
    "restart": ("restart chat --wait", "restart chat --evidence"),
}
