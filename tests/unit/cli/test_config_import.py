"""`config import`: what people run today becomes settings that `check` accepts, without a secret in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.adopt import Adopted, from_script
from appliance.cli.main import main
from appliance.config import parse

SCRIPT = r"""#!/bin/bash
MODEL=Qwen/Qwen2.5-14B-Instruct-AWQ
export CUDA_VISIBLE_DEVICES=0,1 HF_TOKEN=hf_abcdefghijkl NCCL_P2P_DISABLE=1
nohup python3 -m vllm.entrypoints.openai.api_server \
    --model $MODEL --served-model-name qwen "qwen-14b" --tensor-parallel-size 2 --max-model-len 16384 \
    --swap-space 4 --disable-log-requests --host 0.0.0.0 --port ${PORT:-8000} --api-key sk-secret123456 > log 2>&1 &
docker run -d --gpus '"device=2,3"' --ipc=host --shm-size 16g -v /srv/models:/models -e "HF_TOKEN=$TOKEN" -m 64g \
    --name embed vllm/vllm-openai:v0.9.0 --model /models/bge-m3 --task embed
"""
COMPOSE = """
services:
  proxy: {image: nginx}
  llm:
    image: vllm/vllm-openai:latest
    command: >
      --model ${MODEL:-meta-llama/Llama-3.1-8B-Instruct}
      --max-model-len 8192
    ports: ["8001:8000"]
    environment:
      - HUGGING_FACE_HUB_TOKEN=${HF_TOKEN}
      - HTTPS_PROXY=http://proxy.example.org:3128
      - HF_ENDPOINT=https://hf-mirror.example.org
      - MY_API_KEY=sk-secret123456
  coder:
    image: example.org/inference:1
    entrypoint: ["/bin/sh", "-c", "exec vllm serve Qwen/Qwen3-8B -tp 2 $$EXTRA"]
"""

M = {"name": "m", "model": "m"}


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def _file(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "config", "import", _file(tmp_path, "run.sh", SCRIPT), "--json")
    assert status == 0 and err == ""
    told = json.loads(out)
    chat, embed = told["engines"]
    remarks = {"chat": chat.pop("remarks"), "embed": embed.pop("remarks")}
    assert chat == {
        "from": "line 4",
        "name": "qwen2-5-14b-instruct-awq",
        "model": "Qwen/Qwen2.5-14B-Instruct-AWQ",
        "served_names": ["qwen", "qwen-14b"],
        "gpus": [0, 1],
        "env": {"NCCL_P2P_DISABLE": "1"},
        "vllm": {"max_model_len": 16384},
    }
    assert embed == {
        "from": "line 7",
        "name": "embed",
        "model": "/srv/models/bge-m3",
        "gpus": [2, 3],
        "memory_max": "64GiB",
        "vllm": {"runner": "pooling", "convert": "embed"},
    }
    for what in ("HF_TOKEN is not copied", "swap_space", "disable_log_requests", "api_key", '"0.0.0.0:8000"'):
        assert any(what in remark for remark in remarks["chat"]), what
    assert any("task" in remark for remark in remarks["embed"])
    assert "secret123456" not in out and "hf_abc" not in out


def test_what_is_printed_is_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("run.sh", SCRIPT), ("compose.yml", COMPOSE)):
        status, out, err = run(capsys, "config", "import", _file(tmp_path, name, text))
        assert (status, err) == (0, "")
        config = _file(tmp_path, "config.toml", out)
        assert run(capsys, "check", config)[0] == 0
        assert max(map(len, out.splitlines())) <= 120


def test_a_compose_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL", raising=False)
    _file(tmp_path, ".env", "# names\nexport MODEL='some/model'\n")
    status, out, err = run(capsys, "config", "import", _file(tmp_path, "stack", COMPOSE), "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    llm, coder = told["engines"]
    assert (llm["name"], llm["model"], llm["vllm"]) == ("llm", "some/model", {"max_model_len": 8192})
    assert any('listen = ["0.0.0.0:8001"] keeps the old port' in remark for remark in llm["remarks"])
    assert "env" not in llm and "secret123456" not in out
    assert (coder["model"], coder["vllm"]) == ("Qwen/Qwen3-8B", {"tensor_parallel_size": 2})
    assert any("$EXTRA" in remark for remark in coder["remarks"])
    assert told["tables"] == {
        "network": {"https_proxy": "http://proxy.example.org:3128"},
        "models": {"endpoint": "https://hf-mirror.example.org"},
    }


def test_a_command_on_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write("vllm serve some/model --max-num-seqs 8")
    saved = os.dup(0)
    try:
        os.dup2(reading, 0)
        status, out, _ = run(capsys, "config", "import", "-")
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reading)
    assert status == 0 and 'model = "some/model"' in out and "max_num_seqs = 8" in out


def test_written_into_a_drop_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _file(tmp_path, "config.toml", '[[engine]]\nname = "chat"\n')
    script = _file(tmp_path, "run.sh", SCRIPT)
    status, out, err = run(capsys, "--config", config, "config", "import", "--write", script)
    target = tmp_path / "config.d" / "imported.toml"
    assert status == 0 and out == f"wrote {target}: qwen2-5-14b-instruct-awq, embed\n"
    assert "HF_TOKEN is not copied" in err and "llm-appliance apply" in err
    assert run(capsys, "--config", config, "check")[1].endswith(
        "good, 3 engines, 1 warning\n"
    )  # the directory is not here
    status, _, err = run(capsys, "--config", config, "config", "import", "--write", script)
    assert status == 1 and f"{target} is there already" in err


def test_the_next_step_names_the_file_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, script = _file(tmp_path, "config.toml", "[["), _file(tmp_path, "run.sh", "vllm serve some/model")
    status, _, err = run(capsys, "--config", config, "config", "import", "--write", script)
    assert status == 1 and err.endswith(f"hint: llm-appliance check {config}\n")
    config.write_text("")
    status, _, err = run(capsys, "--config", config, "config", "import", "--write", script)
    assert status == 0 and f"next: llm-appliance check {config}, then " in err


def test_an_engine_of_the_same_name_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _file(tmp_path, "config.toml", '[[engine]]\nname = "embed"\n')
    status, _, err = run(capsys, "--config", config, "config", "import", "--write", _file(tmp_path, "run.sh", SCRIPT))
    assert status == 1 and "has an engine embed already" in err
    assert not (tmp_path / "config.d").exists()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("run.sh", "echo hello\n", "starts no vLLM"),
        ("x.yml", "services: [\n", "is no YAML that can be read"),
        ("x.yml", "a: 1\n", "it has no services"),
        ("x.yml", "services: {web: {image: nginx}}\n", "starts no vLLM"),
        ("x.yml", "services: !reset {}\n", "is no YAML that can be read"),
        ("run.sh", "#" * (1 << 20) + "\n\n", "larger than 1 MiB"),
        ("x.yml", "[" * 100000, "is no YAML that can be read"),
    ],
)
def test_what_cannot_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, words: str
) -> None:
    status, out, err = run(capsys, "config", "import", _file(tmp_path, name, text))
    assert status == 1 and out == "" and words in err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "config", "import", tmp_path / "none")
    assert status == 2 and "no such file" in err


def test_a_setting_that_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = _file(tmp_path, "run.sh", "vllm serve some/model --max-model-len many --no-such-flag 3")
    status, out, err = run(capsys, "config", "import", script)
    assert status == 0 and "max_model_len: " in out and "no_such_flag: " in out  # left out, and told
    assert 'model = "some/model"' in out and err == ""


@pytest.mark.parametrize(
    ("script", "engine"),
    [
        ("vllm serve m", M),
        ("NVIDIA_VISIBLE_DEVICES=all vllm serve m", M),
        ("CUDA_VISIBLE_DEVICES=GPU-a vllm serve m", {**M, "gpus": ["GPU-a"]}),
        ("CUDA_VISIBLE_DEVICES=1 vllm serve m -tp 2", {**M, "gpus": [1], "vllm": {"tensor_parallel_size": 2}}),
        ("VLLM_API_KEY=x A=b vllm serve m", {**M, "env": {"A": "b"}}),
        ("bash -lc 'vllm serve m'", M),
        ("docker run vllm/vllm-openai m", M),
        ("docker run x/y sh -c 'A=b vllm serve m'", {**M, "env": {"A": "b"}}),
    ],
)  # fmt: skip
def test_settings_of_an_engine(script: str, engine: dict[str, Any]) -> None:
    (adopted,) = from_script(script)
    assert adopted.engine == engine


@pytest.mark.parametrize(
    ("script", "port", "listen"),
    [
        ("vllm serve m", "8000", "0.0.0.0:8000"),
        ("vllm serve m --host 127.0.0.1 --port 9000", "9000", "127.0.0.1:9000"),
        ("docker run vllm/vllm-openai m", "8000", "0.0.0.0:8000"),
        ("docker run -p 80:8000 -p 81:81 vllm/vllm-openai m", "80", "0.0.0.0:80"),
        ("docker run -p 127.0.0.1:80:90 vllm/vllm-openai m --port 90 --host 0.0.0.0", "80", "127.0.0.1:80"),
        ("docker run -p '[::]:80:8000' vllm/vllm-openai m", "80", "0.0.0.0:80"),
    ],
)
def test_where_clients_connect_now_is_told(script: str, port: str, listen: str) -> None:
    ((remark,),) = (each.remarks for each in from_script(script))
    assert remark.startswith(f"clients came to port {port}; ") and '"127.0.0.1:8080"' in remark
    assert f'listen = ["{listen}"] keeps the old port' in remark
    assert ("lets others in" in remark) is listen.startswith("0.0.0.0:")


def test_a_socket_of_its_own_was_no_port() -> None:
    ((remark,),) = (each.remarks for each in from_script("vllm serve m --uds /run/m.sock"))
    assert remark.startswith("uds: ")


def test_names_are_told_apart() -> None:
    names = [each.engine["name"] for each in from_script("vllm serve a/m\nvllm serve b/m\nvllm serve ///\nvllm serve")]
    assert names == ["m", "m-2", "default", "default-2"]


def test_all_is_valid_whatever_the_model_is_called() -> None:
    for model in ("A_B.c", "x" * 200, "--", "a/b:c", "模型", "1"):
        adopted: tuple[Adopted, ...] = from_script(f"vllm serve '{model}'")
        for each in adopted:
            problems = parse.parse({"engine": [dict(each.engine)]})[1]
            assert not [problem for problem in problems if "name" in str(problem).split(":")[0]], model


def test_what_would_make_the_configuration_invalid_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _file(tmp_path, "config.toml", "")
    script = _file(tmp_path, "run.sh", "vllm serve ./models/mine")
    status, _, err = run(capsys, "--config", config, "config", "import", "--write", script)
    assert status == 1 and "nothing was written" in err and "engine.model" in err
    assert not (tmp_path / "config.d" / "imported.toml").exists()
