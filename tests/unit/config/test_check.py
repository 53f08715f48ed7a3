"""The laws at their borders: what just passes, and what just does not. The messages are the corpus's."""

from __future__ import annotations

import pytest

from appliance.config.model import Config, Engine
from appliance.config.parse import parse
from appliance.config.placement import gpus_of
from appliance.config.source import tomllib

HANG = "[supervisor.hang]\n"
TWO = '[[engine]]\nname = "a"\nmodel = "x/m"\n{a}\n[[engine]]\nname = "b"\nmodel = "x/{m}"\n{b}\n'


def errors(text: str) -> list[str]:
    return [problem.key for problem in parse(tomllib.loads(text))[1] if problem.severity == "error"]


def warnings(text: str) -> list[str]:
    return [problem.key for problem in parse(tomllib.loads(text))[1] if problem.severity == "warning"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (HANG + 'suspect = "6s"', []),
        (HANG + 'suspect = "5900ms"', ["supervisor.interval"]),
        (HANG + 'suspect = "89s"', []),
        (HANG + 'suspect = "90s"', ["supervisor.hang.suspect"]),
        (HANG + 'confirm = "240s"', []),
        (HANG + 'confirm = "241s"', ["supervisor.hang.confirm"]),
        (HANG + 'confirm_idle_gpu = "30s"', ["supervisor.hang.suspect"]),
        (HANG + 'long_step = "89s"', ["supervisor.hang.confirm"]),
        ('[supervisor.restart]\nbackoff = "5m"', []),
        ('[supervisor.restart]\nbackoff = "301s"', ["supervisor.restart.backoff"]),
        # No law between a request's patience and the judgement of an engine.
        ('[gateway.timeouts]\nfirst_token = "1s"', []),
        ('[gateway.timeouts]\nfirst_token = "1d"', []),
    ],
)
def test_the_ladder_of_times(text: str, wrong: list[str]) -> None:
    assert errors(text) == wrong


def test_a_blind_verdict_after_vllms_own_end_is_a_warning() -> None:
    assert warnings(HANG + 'confirm_blind = "299s"') == []
    assert warnings(HANG + 'confirm_blind = "300s"') == ["supervisor.hang.confirm_blind"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('listen = ["127.0.0.1:8080", "127.0.0.1:8082"]', []),
        ('listen = ["127.0.0.1:8081"]', ["gateway.admin_listen"]),
        ('listen = ["127.0.0.2:8081"]', []),
        ('listen = ["0.0.0.0:8081"]', ["gateway.admin_listen"]),
        ('listen = ["[::]:8081"]', ["gateway.admin_listen"]),
        ('listen = ["0.0.0.0:8080", "[::]:8080"]', []),
        ('listen = ["[::]:8080", "[::1]:8080"]', ["gateway.listen"]),
        ('listen = ["127.0.0.1:0", "127.0.0.1:0"]', []),
        ('admin_listen = "[::1]:8081"', []),
        ('admin_listen = "[::]:8081"', ["gateway.admin_listen"]),
        ('admin_listen = "128.0.0.1:8081"', ["gateway.admin_listen"]),
        ('listen = ["[::1]:8080", "127.9.9.9:8080"]\n[auth]\nrequired = false', []),
        ('listen = ["10.0.0.1:8080"]\n[auth]\nrequired = false', ["gateway.listen"]),
        ('listen = ["[fd00::1]:8080"]\n[auth]\nrequired = false', ["gateway.listen"]),
        ('tls_certificate = "/c"', ["gateway.tls_certificate"]),
        ('tls_certificate = "/c"\ntls_key = "/k"', []),
    ],
)
def test_listeners(text: str, wrong: list[str]) -> None:
    assert errors(f"[gateway]\n{text}") == wrong


def test_a_listener_on_the_network_without_tls_is_a_warning() -> None:
    assert warnings('[gateway]\nlisten = ["0.0.0.0:80"]') == ["gateway.listen"]
    assert warnings('[gateway]\nlisten = ["0.0.0.0:80"]\ntls_certificate = "/c"\ntls_key = "/k"') == []


@pytest.mark.parametrize(
    ("first", "model", "second", "wrong"),
    [
        ("", "other", "", []),
        ("", "m", "", []),  # the same model with the same flags: replicas
        ("", "m", "vllm.seed = 1", ["engine.model"]),
        ("", "m", 'vllm.seed = 1\nserved_names = ["n"]', []),
        ("", "other", 'served_names = ["m"]', ["engine.served_names"]),
        ("", "other", 'served_names = ["n", "m"]', ["engine.served_names"]),
        ('vllm.enable_lora = true\nvllm.lora_modules = ["sql=/l"]', "sql", "", ["engine.model"]),
        ('vllm.enable_lora = true\nvllm.lora_modules = [{ name = "sql", path = "/l" }]', "sql", "", ["engine.model"]),
        ("", "m", 'vllm.seed = 1\nremote = ["http://h:1"]', []),
        ("gpus = [0]", "other", "gpus = [1]", []),
        ("gpus = [0]", "other", "gpus = [0]", ["engine.gpus"]),
        ("gpus = [0]\nvllm.gpu_memory_utilization = 0.5", "other",
         "gpus = [0]\nvllm.gpu_memory_utilization = 0.5", []),
        ("gpus = [0]\nvllm.gpu_memory_utilization = 0.5", "other",
         "gpus = [0]\nvllm.gpu_memory_utilization = 0.51", ["engine.gpus"]),
        ("gpus = [0]", "other", 'gpus = [0]\nremote = ["http://h:1"]', []),
        ("gpus = [0]", "other", "gpus = [0]\nvllm.kv_cache_memory_bytes = 1000000", []),
        ("gpus = []", "other", "gpus = []", []),
        ("", "other", "gpus = [0]\nreplicas = 2", ["engine.gpus"]),
        ("replicas = 2\ngpus = [0, 1]", "other", "gpus = [2]", []),
    ],
)  # fmt: skip
def test_engines_among_one_another(first: str, model: str, second: str, wrong: list[str]) -> None:
    assert errors(TWO.format(a=first, b=second, m=model)) == wrong


def test_one_engine_may_go_unnamed_and_a_replica_may_not_be_taken() -> None:
    assert errors('[[engine]]\nmodel = "x/m"\n[[engine]]\nname = "b"\nmodel = "x/n"') == []
    assert errors('[[engine]]\nmodel = "x/m"\n[[engine]]\nmodel = "x/n"') == ["engine.name"]
    clash = '[[engine]]\nname = "a-2"\nmodel = "x/m"\n[[engine]]\nname = "a"\nmodel = "x/n"\nreplicas = {n}'
    assert errors(clash.format(n=1)) == []
    assert errors(clash.format(n=2)) == ["engine.name"]
    long = f'[[engine]]\nname = "{"a" * 63}"\nreplicas = '
    assert errors(f"{long}1") == []
    assert errors(f"{long}2") == ["engine.name"]


@pytest.mark.parametrize(
    ("gpus", "replicas", "vllm", "first", "last"),
    [
        ("auto", 2, {}, "auto", "auto"),
        ((), 2, {}, (), ()),
        ((0, 1), 1, {}, (0, 1), (0, 1)),
        ((0, 1), 2, {}, (0,), (1,)),
        ((0, 1, 2, 3), 2, {"tensor_parallel_size": 2}, (0, 1), (2, 3)),
        ((0, 1), 2, {"tensor_parallel_size": 2}, (0, 1), (0, 1)),
        ((0,), 2, {}, (0,), (0,)),
    ],
)
def test_replicas_split_the_gpus(
    gpus: object, replicas: int, vllm: dict[str, object], first: object, last: object
) -> None:
    engine = Engine(gpus=gpus, replicas=replicas, vllm=vllm)  # type: ignore[arg-type]
    assert gpus_of(engine, engine.instances[0]) == first
    assert gpus_of(engine, engine.instances[-1]) == last


def test_no_engine_at_all_is_allowed_and_said() -> None:
    config, problems = parse({"engine": []})
    assert config == Config(engines=())
    assert [problem.severity for problem in problems] == ["warning"]
