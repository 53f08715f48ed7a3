from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire.redact import HIDDEN, Redactor, is_secret_name, secrets_in

SECRET = "Zq9xSecretValue77"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "VLLM_API_KEY", "apiKey", "AWS_SECRET_ACCESS_KEY", "password", "db-password",
     "Authorization", "remote_api_key", "X-Api-Key", "GIT_PAT", "token"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["token_file", "remote_api_key_file", "keys_file", "tls_key", "eos_token_id", "max_num_batched_tokens", "tokenizer",
     "key_id", "monkey", "keepalive", "author", "PATH", "", "max_tokens", "compatible"],
)  # fmt: skip
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_of_a_configuration_are_found_wherever_they_stand() -> None:
    settings = {
        "network": {"https_proxy": "http://me:pa55word@proxy:3128"},
        "models": {"token_file": "/etc/token"},
        "engine": [{"env": {"HF_TOKEN": SECRET, "TOKEN": "ab"}, "vllm": {"hf_token": ["another-secret"]}}],
    }
    assert secrets_in(settings) == {SECRET, "another-secret", "me:pa55word", "pa55word"}


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={SECRET}", f"api_key: {SECRET}", f"'api_key': '{SECRET}'", f'{{"password": "{SECRET}"}}',
        f"--api-key {SECRET}", f"--hf-token={SECRET} --port 1", f"Authorization: Bearer {SECRET}", f"bearer {SECRET}",
        f"sk-{SECRET}", f"hf_{SECRET}", f"ghp_{SECRET}1234", f"https://me:{SECRET}@mirror/x", f"x-api-key={SECRET}",
        f"https://x/y?a=1&token={SECRET}", f"xoxb-{SECRET}", f"ERROR token={SECRET}", f"--flag token={SECRET}",
        f"a=b=token={SECRET}", f"eyJhbGciOi.{SECRET}.sig", f'password="a,{SECRET}"', f"password = 'two {SECRET} words'",
        f'"token": "a b;c}}{SECRET}"', f'{{\\"token\\": \\"{SECRET}\\"}}', f"password='it\"s {SECRET}'",
        f'--api-key "a {SECRET}"', f"password=\"it\\\"s {SECRET}\"", f"env='token=\"a {SECRET}\"'",
        f'token="a {SECRET}',
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    hidden = Redactor().text(f"(EngineCore pid=7) INFO before {text} after\nnext line")
    assert SECRET not in hidden and HIDDEN in hidden
    assert hidden.startswith("(EngineCore pid=7) INFO before ") and hidden.endswith("\nnext line")


def test_words_beside_a_quoted_secret_stay() -> None:
    text = f"a='x y' token='b {SECRET}' c=\"d, e\" key_id='k 1'"
    assert Redactor().text(text) == f"a='x y' token='{HIDDEN}' c=\"d, e\" key_id='k 1'"


@pytest.mark.parametrize(
    "text",
    [
        "prompt: 'tell me of Ada'", "Received request x: prompt: 'Ada', params: SamplingParams(n=1)", "prompt=Ada",
        '{"messages": [{"role": "user", "content": "Ada"}]}', "'content': 'Ada'", "prompt_token_ids=[1, 2, Ada]",
        "input_value={'x': 'Ada'}, input_type=dict", 'generated_text="Ada"', "prompt: 'line one\nAda two\nAda three'",
        'text="Ada', "Prompts: ['Ada']", "DeltaMessage(role=None, content=None, reasoning='Ada', tool_calls=[])",
        "reasoning_content='Ada'", "{'type': 'thinking', 'thinking': 'Ada'}", "system_prompt='Ada'",
    ],
)  # fmt: skip
def test_prompts_and_completions_are_cut_off(text: str) -> None:
    hidden = Redactor().text(f"1764.5 (APIServer pid=7) INFO {text}\n(APIServer pid=7) INFO goes on")
    assert "Ada" not in hidden
    assert hidden.startswith("1764.5 (APIServer pid=7) INFO ") and hidden.endswith("\n(APIServer pid=7) INFO goes on")


@pytest.mark.parametrize(
    "line",
    [
        "Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 4.5 tokens/s, Running: 3 reqs",
        'File "/usr/lib/python3.11/threading.py", line 1116 in wait', "torch.OutOfMemoryError: CUDA out of memory.",
        'vllm:prompt_tokens_total{engine="0",model_name="chat"} 12.0', "Loading weights took 3.2 seconds",
        "max_num_batched_tokens=8192, pad_token_id=0, tokenizer=/models/x", "key_id k-1234",
        "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=VLLM::Worker_TP0, GPU has fallen off the bus.",
    ],
)  # fmt: skip
def test_evidence_stays(line: str) -> None:
    assert Redactor().text(line) == line


def test_values_are_redacted_by_name_and_json_stays_json() -> None:
    value = {"env": {"HF_TOKEN": "x", "A": "1"}, "n": 3, "messages": [{"content": "Ada"}], "content": "Ada", "ok": True}
    assert Redactor().value(value) == {
        "env": {"HF_TOKEN": HIDDEN, "A": "1"}, "n": 3, "messages": HIDDEN, "content": HIDDEN, "ok": True,
    }  # fmt: skip
    lines = json.dumps({"msg": f"token={SECRET} prompt: 'Ada'"}) + "\n" + '{"torn": "' + "\n"
    hidden = Redactor().file("timeline.jsonl", lines)
    assert json.loads(hidden.splitlines()[0])["msg"] == f"token={HIDDEN} prompt: {HIDDEN}"
    assert len(hidden.splitlines()) == 2


@given(st.text(max_size=200), st.text(min_size=6, max_size=40).filter(str.strip), st.text(max_size=200))
def test_a_known_secret_is_nowhere(before: str, secret: str, after: str) -> None:
    if secret not in HIDDEN and HIDDEN not in secret:
        hidden = Redactor([secret]).text(f"{before} {secret} {after}").replace(HIDDEN, "\0")
        assert secret not in hidden


@given(st.text(max_size=400))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = Redactor().text(text)
    assert Redactor().text(once) == once
