"""Foreign formats: bytes and mappings in, values out. What vLLM or OpenAI may change lives here."""
