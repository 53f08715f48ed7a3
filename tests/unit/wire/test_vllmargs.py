from __future__ import annotations

from typing import Literal

import pytest

from appliance.config.model import Config, Engine
from appliance.wire.vllmargs import SOCKET_PATH_MAX, LaunchPlan, launch_plan, part, ranks_of


def plan(*engines: Engine, instance: str = "default", device: Literal["cuda", "cpu"] = "cpu", cpus: int = 4,
         gpus: tuple[str, ...] = ()) -> LaunchPlan:  # fmt: skip
    return launch_plan(Config(engines=engines), instance, device=device, cpus=cpus, gpus=gpus, runtime="/runtime")


def value(found: LaunchPlan, option: str) -> str:
    return found.argv[found.argv.index(option) + 1]


def test_the_default_engine_on_a_cpu() -> None:
    found = plan(Engine())
    assert found.argv[:3] == ("/runtime/bin/vllm", "serve", "/var/lib/llm-appliance/models/builtin/smollm2-135m")
    assert value(found, "--served-model-name") == "smollm2-135m"
    assert value(found, "--uds") == "/run/llm-appliance/engines/default/vllm.sock" == found.socket
    assert value(found, "--max-model-len") == "4096"
    assert int(value(found, "--kv-cache-memory-bytes")) == 512 << 20
    assert "--enforce-eager" in found.argv
    assert found.env["TORCH_COMPILE_DISABLE"] == "1"
    assert found.env["HF_HUB_OFFLINE"] == "1"
    assert found.env["PYTHONFAULTHANDLER"] == "1"
    assert "--port" not in found.argv and "--host" not in found.argv


def test_caches_are_the_instances_own() -> None:
    found = plan(Engine(name="chat", replicas=2), instance="chat-2")
    own = "/var/cache/llm-appliance/chat-2"
    for variable in ("HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME",
                     "HF_HOME", "CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE"):  # fmt: skip
        assert found.env[variable].startswith(own)
    assert own in found.directories


def test_what_is_compiled_has_a_place_of_its_own_and_the_rest_is_shared() -> None:
    config = Config(engines=(Engine(name="chat"),))
    one, other = (launch_plan(config, "chat", device="cpu", cpus=2, compiled=key).env for key in ("one", "other"))
    differing = {variable: text for variable, text in one.items() if other[variable] != text}
    assert set(differing) == {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
                              "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"}  # fmt: skip
    assert all(f"{text}/".startswith("/var/cache/llm-appliance/chat/compiled/one/") for text in differing.values())


def test_an_embedding_model_pools() -> None:
    found = plan(Engine(name="default", model="builtin:minilm-l6-v2"))
    assert value(found, "--runner") == "pooling"


def test_the_operators_flags_win() -> None:
    found = plan(Engine(vllm={"max_model_len": 100, "enforce_eager": False, "max_num_seqs": 3, "shutdown_timeout": 5}))
    assert value(found, "--max-model-len") == "100"
    assert value(found, "--max-num-seqs") == "3"
    assert value(found, "--shutdown-timeout") == "5"
    assert "--no-enforce-eager" in found.argv and "--enforce-eager" not in found.argv


def test_a_share_of_memory_by_the_operator_replaces_our_bytes() -> None:
    assert "--kv-cache-memory-bytes" not in plan(Engine(vllm={"gpu_memory_utilization": 0.3})).argv


def test_the_operators_environment_wins_but_for_what_we_stand_on() -> None:
    env = {"NCCL_P2P_DISABLE": "1", "VLLM_API_KEY": "sk-x", "VLLM_RPC_BASE_PATH": "/x", "VLLM_SERVER_DEV_MODE": "1",
           "HF_HOME": "/data"}  # fmt: skip
    found = plan(Engine(env=env))
    assert (found.env["NCCL_P2P_DISABLE"], found.env["HF_HOME"]) == ("1", "/data")
    assert "VLLM_API_KEY" not in found.env and "VLLM_SERVER_DEV_MODE" not in found.env
    assert found.env["VLLM_RPC_BASE_PATH"] == "/run/llm-appliance/engines/default/rpc"
    assert not any("sk-x" in word for word in found.argv)


@pytest.mark.parametrize("name", ["a", "a" * 39, "a" * 40, "a" * 63])
def test_sockets_have_short_paths(name: str) -> None:
    found = plan(Engine(name=name), instance=name)
    assert len(found.socket) <= SOCKET_PATH_MAX
    assert len(f"{found.env['VLLM_RPC_BASE_PATH']}/35796b70-9a3e-422d-b46c-0c6b7e3cb303") <= SOCKET_PATH_MAX
    assert found.directories[-1] == found.env["VLLM_RPC_BASE_PATH"]


def test_ranks_are_as_many_as_gpus() -> None:
    found = plan(Engine(), device="cuda", gpus=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    assert value(found, "--tensor-parallel-size") == "4"
    assert found.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b,GPU-c,GPU-d"
    assert found.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "--enforce-eager" not in found.argv and "TORCH_COMPILE_DISABLE" not in found.env


@pytest.mark.parametrize(
    ("vllm", "size"),
    [({"pipeline_parallel_size": 2}, "2"), ({"data_parallel_size": 4}, None), ({"tensor_parallel_size": 2}, "2")],
)
def test_other_ways_to_split_count(vllm: dict[str, object], size: str | None) -> None:
    found = plan(Engine(vllm=vllm), device="cuda", gpus=("0", "1", "2", "3"))
    assert (value(found, "--tensor-parallel-size") if "--tensor-parallel-size" in found.argv else None) == size
    pipeline = vllm.get("pipeline_parallel_size", 1)
    assert ranks_of(Engine(vllm=vllm), 4) == (int(size or 1), pipeline)


@pytest.mark.parametrize(
    ("vllm", "gpus", "ranks"),
    [({}, 2, (2, 1)), ({}, 1, (1, 1)), ({}, 0, (1, 1)), ({"tensor_parallel_size": 2}, 0, (2, 1)),
     ({"tensor_parallel_size": True}, 4, (1, 1)), ({"pipeline_parallel_size": 4}, 2, (1, 4))],
)  # fmt: skip
def test_ranks_that_work_on_one_step(vllm: dict[str, object], gpus: int, ranks: tuple[int, int]) -> None:
    assert ranks_of(Engine(vllm=vllm), gpus) == ranks


def test_one_gpu_and_unknown_gpus_need_no_split() -> None:
    assert "--tensor-parallel-size" not in plan(Engine(), device="cuda", gpus=("0",)).argv
    unknown = plan(Engine(), device="cuda")
    assert "--tensor-parallel-size" not in unknown.argv and "CUDA_VISIBLE_DEVICES" not in unknown.env


def test_engines_on_one_cpu_do_not_share_cores() -> None:
    chat, embed = Engine(name="chat"), Engine(name="embed", model="builtin:minilm-l6-v2")
    cores = [plan(chat, embed, instance=name, cpus=8).env["VLLM_CPU_OMP_THREADS_BIND"] for name in ("chat", "embed")]
    assert cores == ["0,1,2", "4,5,6"]
    assert "VLLM_CPU_OMP_THREADS_BIND" not in plan(Engine()).env  # alone, vLLM chooses


def test_ranks_on_a_cpu_have_a_list_each() -> None:
    found = plan(Engine(vllm={"tensor_parallel_size": 2}), cpus=2)
    assert found.env["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 3), (7, 2), (8, 8), (3, 2)])
def test_parts_are_disjoint_while_the_cores_suffice(cores: int, count: int) -> None:
    parts = [part(range(cores), index, count) for index in range(count)]
    assert all(parts)
    if count <= cores:
        assert sorted(core for each in parts for core in each) == list(range(cores))


def test_an_instance_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        plan(Engine(), instance="other")
