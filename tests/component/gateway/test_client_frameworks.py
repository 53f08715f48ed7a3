"""LangChain's ChatOpenAI and litellm as clients, in an environment and a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import provisions
from tests.support.fakewire.openai import VECTOR
from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, config, remote

pytestmark = [
    pytest.mark.skipif(
        sys.version_info < provisions.FRAMEWORKS_PYTHON, reason="langchain-core needs Python 3.11 or newer"
    ),
    pytest.mark.slow,  # seconds for their imports alone
    pytest.mark.timeout(300),  # the environment may have to be made first
]
CLIENT = Path(__file__).resolve().parents[2] / "support/frameworkclient.py"
TEXT = "The capital of France is Paris. It"
ASKED = {"city": "Paris", "days": 7}


def run(name: str, gateway: Gateway) -> Any:
    environment = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is fetched
        "LANGSMITH_TRACING": "false",
        "NO_PROXY": "127.0.0.1",
    }
    command = [str(provisions.frameworks()), str(CLIENT), name, gateway.base, MODEL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def calm(engine: FakeEngine, tmp_path: Path) -> Any:
    made = Gateway(tmp_path / "g", config(remote(engine.url)))
    yield made
    made.kill()


def test_langchain(calm: Gateway) -> None:
    said = run("langchain", calm)
    assert said["text"] == said["told"] == TEXT and said["usage"] == 8
    assert said["pieces"] == 8 and said["streamed_usage"] == [8]
    assert said["tool"] == said["streamed_tool"] == said["form"] == ASKED
    assert said["broken"] == "APIError"
    assert [pytest.approx(VECTOR) == one for one in said["vectors"]] == [True, True]


def test_litellm(calm: Gateway) -> None:
    said = run("litellm", calm)
    assert said["text"] == said["streamed"] == TEXT and said["usage"] == 8 and said["pieces"] == 8
    assert said["tool"] == ASKED and "no engine serves the model" in said["refused"]
    assert said["broken"].endswith("Error"), said["broken"]
    assert [pytest.approx(VECTOR) == one for one in said["vectors"]] == [True, True]
