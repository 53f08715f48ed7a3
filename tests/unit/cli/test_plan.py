"""`plan` through the command line: cases from the configuration and the arguments, pages, JSON and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.host import files
from tests.support.fileserver import Script, file_server
from tests.support.publishedlogs import DEEPSEEK_V2_LITE, QWEN3_14B, QWEN36_27B

GPU_4090 = {"name": "NVIDIA GeForce RTX 4090", "mem_total_mib": 24564.0}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory like Qwen3-14B's, its weights left out: headers tell what they would take."""
    return directory(tmp_path / "qwen", QWEN3_14B, {
        "model.embed_tokens.weight": 151936 * 5120, "lm_head.weight": 151936 * 5120,
        **{f"model.layers.{n}.mlp.up_proj.weight": 330_000_000 - 10_000_000 for n in range(40)},
        **{f"model.layers.{n}.self_attn.k_proj.weight": 10_000_000 for n in range(40)},
    })  # fmt: skip


def directory(path: Path, config: dict[str, Any], tensors: dict[str, int]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    table, end = {}, 0
    for name, count in tensors.items():
        table[name] = {"dtype": "BF16", "shape": [count], "data_offsets": [end, end + 2 * count]}
        end += 2 * count
    text = json.dumps(table).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of four cards, as its supervisor shows it, with an empty configuration."""
    monkeypatch.setenv("LLM_APPLIANCE_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("LLM_APPLIANCE_STATE", str(tmp_path / "state"))
    (tmp_path / "run/supervisor").mkdir(parents=True)
    cards = [{**GPU_4090, "pci": f"0000:0{n}:00", "uuid": f"GPU-{n}"} for n in range(4)]
    files.replace_json(tmp_path / "run/supervisor/gpus.json", {"gpus": cards})
    (tmp_path / "config.toml").touch()
    return tmp_path / "config.toml"


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["plan", *(str(word) for word in words)])
    out, err = capsys.readouterr()
    return status, out, err


def plans(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, list[dict[str, Any]]]:
    status, out, err = run(capsys, "--json", *words)
    assert err == ""
    return status, json.loads(out)


def settings(plan: dict[str, Any]) -> dict[str, Any]:
    return {line["key"]: line["value"] for line in plan["settings"]}


# --- a model on cards that are not here ---------------------------------------------------------------------------


def test_a_page_in_eighty_columns(machine: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--config", machine, "--model", model, "--gpus", "4x RTX 4090")
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    for words in (
        "fits on 2x RTX 4090 of 4",
        "KV cache",
        "REQUESTS AT ONCE",
        "gpus = [0, 1]",
        "tensor_parallel_size = 2",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("gpus", "status", "words"),
    [
        ("1x RTX 4090", 1, "instead: tensor_parallel_size = 2, on 2 such cards"),
        ("1x V100", 1, "too old"),
        ("1x H100", 0, "# vLLM's own defaults do"),
        ("2x Radeon", 2, "is not in the table of cards"),
        ("0x L4", 2, "1 to 64"),
        ("4x RTX 4090", 0, "are free"),
    ],
)
def test_other_cards(
    machine: Path, model: Path, capsys: pytest.CaptureFixture[str], gpus: str, status: int, words: str
) -> None:
    told, out, err = run(capsys, "--config", machine, "--model", model, "--gpus", gpus)
    assert (told, words in out + err) == (status, True)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_arguments_decide(machine: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--tp", "4", "--max-model-len", "8K", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.8"]
    asked = ["--model", str(model), "--gpus", "4x RTX 4090", "--context", "2048,4.096k"]
    words = ["--config", str(machine), *asked, *fixed]
    status, (plan,) = plans(capsys, *words)
    assert (status, plan["verdict"], plan["engine"]) == (0, "fits", None)
    assert settings(plan) == {"tensor_parallel_size": 4, "max_model_len": 8192, "kv_cache_dtype": "fp8",
                              "gpu_memory_utilization": 0.8}  # fmt: skip
    assert list(plan["sizing"]["requests_at_once"]) == ["2048", "4096"]
    assert plan["sizing"]["kv_bytes_per_token"] == 40 * 2 * 256


def test_a_directory_as_people_write_it(
    machine: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    _, (plan,) = plans(capsys, "--config", machine, "--model", "./qwen", "--gpus", "H100")
    assert plan["model"] == str(model)


@pytest.mark.parametrize(
    "words",
    [("--context", "many"), ("--tp", "0"), ("--gpu-memory-utilization", "1.5"), ("--kv-cache-dtype", "int3"),
     ("chat",), ("--max-model-len", "-1")],
)  # fmt: skip
def test_wrong_arguments(
    machine: Path, model: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(capsys, "--config", machine, "--model", model, "--gpus", "L4", *words)[0] == 2


# --- what is configured, on what is here ------------------------------------------------------------------------------


def test_the_configured_engines_on_the_gpus_found(
    machine: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.write_text(f"""
[[engine]]
name = "wide"
model = "{model}"
gpus = [0, 1]
[engine.vllm]
max_model_len = 16384
[[engine]]
name = "rest"
model = "{model}"
served_names = ["rest"]
[[engine]]
name = "small"
model = "builtin:smollm2-135m"
gpus = []
[[engine]]
name = "away"
model = "x/y"
remote = ["http://127.0.0.1:1"]
""")
    status, made = plans(capsys, "--config", machine)
    assert (status, [plan["engine"] for plan in made]) == (0, ["wide", "rest"])
    assert [settings(plan)["tensor_parallel_size"] for plan in made] == [2, 2]  # as the launcher starts them
    assert settings(made[0])["max_model_len"] == 16384
    assert plans(capsys, "--config", machine, "wide")[1] == made[:1]
    status, _, err = run(capsys, "--config", machine, "nobody")
    assert (status, "the configuration has: wide, rest" in err) == (2, True)


def test_flags_of_the_file_are_kept(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hybrid = directory(tmp_path / "hybrid", QWEN36_27B, {"model.layers.0.mlp.up_proj.weight": 4 << 30})
    machine.write_text(f"""
[[engine]]
model = "{hybrid}"
gpus = [2]
[engine.vllm]
kv_cache_dtype = "fp8"
max_num_seqs = 8
max_num_batched_tokens = 4096
enforce_eager = true
gpu_memory_utilization = 0.9
speculative_config = {{ method = "mtp", num_speculative_tokens = 3 }}
""")
    _, (plan,) = plans(capsys, "--config", machine)
    assert plan["sizing"]["graphs"] == 0 and plan["sizing"]["kv_dtype"] == "fp8"
    assert settings(plan)["max_num_seqs"] == 8
    assert plan["sizing"]["share"] == int(plan["sizing"]["memory"] * 0.9)


def test_copies_hold_the_whole_model(machine: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write_text(
        f'[[engine]]\nmodel = "{model}"\ngpus = [0, 1, 2, 3]\n'
        '[engine.vllm]\ndata_parallel_size = 2\nmax_model_len = "8K"\ncpu_offload_gb = 2\n'
    )
    _, (plan,) = plans(capsys, "--config", machine)
    assert plan["sizing"]["tensor_parallel_size"] == 2
    assert settings(plan)["max_model_len"] == 8192
    whole = plans(capsys, "--config", machine, "--model", model, "--tp", "2")[1][0]["sizing"]["weights"]
    assert plan["sizing"]["weights"] == whole - (2 << 30)


def test_gpus_that_are_not_here(machine: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write_text(f'[[engine]]\nmodel = "{model}"\ngpus = [3, 4]\n')
    assert run(capsys, "--config", machine)[0] == 2
    assert run(capsys, "--config", machine, "--gpus", "2x L40S")[0] == 0


def test_no_gpu_is_known(tmp_path: Path, model: Path, machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run/supervisor/gpus.json").unlink()
    status, _, err = run(capsys, "--config", machine, "--model", model)
    assert (status, "--gpus" in err) == (2, True)


def test_a_card_with_other_memory_than_its_kind(
    tmp_path: Path, model: Path, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.replace_json(tmp_path / "run/supervisor/gpus.json", {"gpus": [{**GPU_4090, "mem_total_mib": 49140.0}]})
    _, (plan,) = plans(capsys, "--config", machine, "--model", model)
    assert plan["sizing"]["memory"] == (49140 << 20) - (1 << 29)


def test_only_engines_without_a_gpu(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write_text("[[engine]]\ngpus = []\n")
    assert run(capsys, "--config", machine)[:2] == (0, "every engine runs on the CPU or elsewhere: nothing to plan\n")


# --- a hub -----------------------------------------------------------------------------------------------------------


def test_a_model_of_a_hub(machine: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with file_server() as served:
        for name in ("config.json", "model.safetensors"):
            served.files[f"/Qwen/Qwen3-14B/resolve/main/{name}"] = Script((model / name).read_bytes())
        machine.write_text(f'[models]\nendpoint = "{served.url}"\n')
        status, (plan,) = plans(capsys, "--config", machine, "--model", "Qwen/Qwen3-14B", "--gpus", "2x L4")
        assert (status, plan["model"]) == (0, "Qwen/Qwen3-14B")
        status, _, err = run(capsys, "--config", machine, "--model", "Qwen/None", "--gpus", "L4")
        assert (status, "has no model Qwen/None" in err) == (3, True)


def test_a_hub_that_does_not_answer_is_told_in_words(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.write_text('[models]\nendpoint = "http://127.0.0.1:9"\n')
    status, _, err = run(capsys, "--config", machine, "--model", "Qwen/Qwen3-14B", "--gpus", "L4")
    assert (status, "127.0.0.1 cannot be reached (Connection refused)" in err) == (3, True)


def test_what_is_not_known_is_said(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = directory(tmp_path / "strange", {**DEEPSEEK_V2_LITE, "compress_ratios": [4]}, {"model.norm.weight": 8})
    status, out, _ = run(capsys, "--config", machine, "--model", strange, "--gpus", "H100")
    assert (status, "unknown on 1x H100" in out, "compress_ratios" in out) == (1, True, True)


def test_a_builtin_that_is_not_here(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "--config", machine, "--model", "builtin:smollm2-135m", "--gpus", "L4")
    assert (status, "models pull" in err) == (3, True)


def test_what_a_start_taught_is_in_the_next_plan(
    machine: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", model, "--tp", "2")
    _, (before,) = plans(capsys, *words)
    assert before["sizing"]["correction"] == 0
    learned = {"model": str(model), "gpu": "RTX 4090", "runtime": "current", "tp": 2, "pp": 1, "kv_gib": -1.5}
    path = machine.parent / "state/supervisor/planerrors.json"
    path.parent.mkdir(parents=True)
    files.replace_json(path, {"errors": [{**learned, "runtime": "another"}, learned]})
    _, (after,) = plans(capsys, *words)
    assert after["sizing"]["kv"] - before["sizing"]["kv"] == after["sizing"]["correction"] == -1.5 * (1 << 30)
    _, page, _ = run(capsys, *words)
    assert "learned from its last start" in page
    _, (other,) = plans(capsys, "--model", model, "--tp", "4")
    assert other["sizing"]["correction"] == 0
