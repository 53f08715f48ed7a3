"""The launcher: vLLM's only parent, what `llm-engine@` runs."""
