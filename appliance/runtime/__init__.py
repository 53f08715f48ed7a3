"""Builds vLLM's environment and fetches models, for `llm-runtime.service`."""
