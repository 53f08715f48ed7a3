"""Units from configurations: golden directories, laws of the digest, and quoting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance import names
from appliance.config import source
from appliance.config.model import Config, Engine, Gateway, Models, Runtime
from appliance.engine.launcher import Limits
from appliance.engine.main import STOP_MARGIN_S as LAUNCHER_MARGIN_S
from appliance.units.render import ENGINE_TEMPLATE, START_MARGIN_S, STOP_MARGIN_S, engine_digest, units
from appliance.wire.vllmargs import SHUTDOWN_S

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
GOLDEN = CORPUS / "units"
CASES = sorted((CORPUS / "config/valid").glob("*.toml"))


def flat(rendered: dict[str, str | None]) -> str:
    """A directory as one text, for people to read in a diff."""
    return "".join(
        f"=== {path}{f' -> {ENGINE_TEMPLATE}' if text is None else ''}\n{text or ''}" for path, text in rendered.items()
    )


def config_of(file: Path) -> Config:
    found = source.load(str(file))
    assert found.config is not None
    return found.config


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_golden(case: Path) -> None:
    rendered = flat(units(config_of(case)))
    assert rendered == flat(units(config_of(case)))
    assert rendered == (GOLDEN / f"{case.stem}.txt").read_text()


def test_an_empty_file_changes_no_listener_and_wants_one_engine() -> None:
    assert list(units(Config())) == [
        "llm-appliance.target.wants/llm-engine@default.service",
        "llm-engine@default.service.d/50-appliance.conf",
    ]


def test_remote_engines_have_no_unit() -> None:
    config = Config(engines=(Engine(name="away", remote=("http://10.0.0.7:8000",)),))
    assert list(units(config)) == ["llm-gateway.service.d/50-appliance.conf"]


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("http://127.0.0.1:9000", None),
        ("http://localhost:9000", None),
        ("http://[::1]:9000", None),
        ("http://10.0.0.7:8000", "IPAddressAllow=10.0.0.7"),
        ("https://[fd00::7]/x", "IPAddressAllow=fd00::7"),
        ("https://user:word@gpu.example.org", "IPAddressDeny="),
    ],
)
def test_the_gateways_network_is_opened_as_far_as_needed(url: str, line: str | None) -> None:
    text = units(Config(engines=(Engine(remote=(url,)),))).get("llm-gateway.service.d/50-appliance.conf")
    assert (text or "").splitlines()[-1:] == ([line] if line else [])


def start(config: Config, instance: str) -> str:
    return units(config).get(f"{names.engine_unit(instance)}.d/60-start.conf") or ""


@pytest.mark.parametrize(
    ("first", "second", "device", "ordered"),
    [
        ("auto", "auto", "auto", True),
        ((0,), (1,), "auto", False),
        ((0,), (0, 1), "auto", True),
        ((), (), "auto", True),
        ((), (0,), "auto", False),
        ((0,), (1,), "cpu", True),
        ((0,), ("GPU-1",), "auto", True),
        ("auto", (1,), "auto", True),
    ],
)
def test_engines_that_share_start_one_after_the_other(
    first: object, second: object, device: str, ordered: bool
) -> None:
    a, b = Engine(name="a", gpus=first), Engine(name="b", gpus=second)  # type: ignore[arg-type]
    config = Config(runtime=Runtime(device=device), engines=(a, b))  # type: ignore[arg-type]
    assert "After=" not in start(config, "a")
    assert ("After=llm-engine@a.service" in start(config, "b")) is ordered
    swapped = replace(config, engines=(replace(a, priority=1), b))
    assert ("After=llm-engine@b.service" in start(swapped, "a")) is ordered
    assert "After=" not in start(swapped, "b")


BASE = Config(engines=(Engine(name="a", gpus=(0,), vllm={"seed": 1, "max_num_seqs": 2}), Engine(name="b")))


def changed(**fields: object) -> Config:
    return replace(BASE, engines=(replace(BASE.engines[0], **fields), BASE.engines[1]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        changed(replicas=2),
        changed(priority=3),
        changed(startup_timeout=60.0),
        changed(vllm={"max_num_seqs": 2, "seed": 1}),
        replace(BASE, engines=BASE.engines[:1]),
        replace(BASE, engines=BASE.engines[::-1]),
        replace(BASE, gateway=Gateway(listen=("0.0.0.0:80",))),
        replace(BASE, models=replace(BASE.models, endpoint="https://hub.example.org")),
    ],
)
def test_a_digest_stays_when_the_start_does_not_depend_on_it(other: Config) -> None:
    assert engine_digest(other, "a") == engine_digest(BASE, "a")


@pytest.mark.parametrize(
    "other",
    [
        changed(model="a/b"),
        changed(served_names=("x",)),
        changed(gpus=(1,)),
        changed(shm_size=1 << 30),
        changed(memory_max=1 << 40),
        changed(env={"A": "1"}),
        changed(vllm={"seed": 1, "max_num_seqs": 3}),
        changed(vllm={"seed": 1}),
        replace(BASE, models=Models(directory="/srv/models")),
        replace(BASE, models=Models(source="modelscope")),
    ],
)
def test_a_digest_changes_with_what_the_start_depends_on(other: Config) -> None:
    assert engine_digest(other, "a") != engine_digest(BASE, "a")
    assert len(engine_digest(other, "a")) == 16


def test_replicas_have_digests_of_their_own_and_strangers_none() -> None:
    config = Config(engines=(Engine(name="a", gpus=(0, 1), replicas=2),))
    assert engine_digest(config, "a") != engine_digest(config, "a-2")
    with pytest.raises(KeyError):
        engine_digest(config, "b")


def test_odd_paths_are_quoted() -> None:
    models = Models(directory='/home/a b/m:"100%"/$x')
    rendered = units(Config(models=models, engines=(Engine(model="q/r"),)), "/etc/100%/config.toml")
    engine = rendered["llm-engine@default.service.d/50-appliance.conf"] or ""
    assert "SourcePath=/etc/100%%/config.toml\n" in engine
    assert 'BindReadOnlyPaths="-/home/a b/m:\\"100%%\\"/$x/huggingface/q/r"\n' in engine
    runtime = rendered["llm-runtime.service.d/50-appliance.conf"] or ""
    assert '"$$0"\' "/home/a b/m:\\"100%%\\"/$$x"\n' in runtime
    assert "ProtectHome=tmpfs\n" in runtime


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\0"])
@pytest.mark.parametrize("flag", ["{}", "name={}"])
def test_no_flag_of_vllm_becomes_a_line_of_the_unit(end: str, flag: str) -> None:
    """Configurations are made of other people's files as well."""
    value = flag.format(f"/home/model{end}ExecStartPre=+/bin/true")
    for vllm in ({"tokenizer": value}, {"lora_modules": (value,)}, {"hf_overrides": {"a": {"b": value}}}):
        rendered = units(Config(engines=(Engine(vllm=vllm),)))
        assert "ExecStartPre" not in flat(rendered)


def test_files_in_hidden_trees_are_bound_in() -> None:
    flags = {"chat_template": "/home/me/t.jinja", "lora_modules": ["a=/root/l", {"name": "b", "path": "/srv/l"}]}
    rendered = units(Config(engines=(Engine(vllm=flags, model="/tmp/model"),)))
    lines = (rendered["llm-engine@default.service.d/50-appliance.conf"] or "").splitlines()
    assert [line for line in lines if line.startswith("Bind")] == [
        "BindReadOnlyPaths=-/tmp/model", "BindReadOnlyPaths=-/home/me/t.jinja", "BindReadOnlyPaths=-/root/l",
    ]  # fmt: skip


def test_each_wheelhouse_is_bound_in_by_itself() -> None:
    """In one word a colon would say where the first is to appear."""
    runtime = Runtime(wheelhouse="/home/me/wheels:/srv/wheels:/root/wheels")
    lines = (units(Config(runtime=runtime))["llm-runtime.service.d/50-appliance.conf"] or "").splitlines()
    assert lines[-2:] == ["BindReadOnlyPaths=-/home/me/wheels", "BindReadOnlyPaths=-/root/wheels"]


def test_the_private_shm_is_never_cancelled() -> None:
    """ReadWritePaths= or NoExecPaths= on /dev/shm would silently give the host's."""
    for case in CASES:
        for text in units(config_of(case)).values():
            for line in (text or "").splitlines():
                assert "/dev/shm" not in line or line.startswith("TemporaryFileSystem=/dev/shm:size=")


def test_a_drop_in_repeats_what_the_template_mounts() -> None:
    """An empty TemporaryFileSystem= takes the template's lines away; all but /dev/shm's must come again."""
    template = (Path(__file__).resolve().parents[3] / "systemd/llm-engine@.service").read_text().splitlines()
    kept = [line for line in template if line.startswith("TemporaryFileSystem=") and "/dev/shm" not in line]
    text = (units(Config())["llm-engine@default.service.d/50-appliance.conf"] or "").splitlines()
    assert kept
    assert [line for line in text if line.startswith("TemporaryFileSystem=/") and "/dev/shm" not in line] == kept


def test_systemds_limits_are_longer_than_the_launchers() -> None:
    """What is left out for an untouched engine stands in the template."""
    template = (Path(__file__).resolve().parents[3] / "systemd/llm-engine@.service").read_text().splitlines()
    assert f"TimeoutStartSec={Engine().startup_timeout + START_MARGIN_S:.0f}" in template
    assert f"TimeoutStopSec={SHUTDOWN_S + STOP_MARGIN_S:.0f}" in template
    limits = Limits(start=1.0)
    assert limits.orphan + limits.kill + limits.output < START_MARGIN_S
    assert limits.stop - SHUTDOWN_S + limits.kill + limits.output < STOP_MARGIN_S
    assert limits.stop - SHUTDOWN_S == LAUNCHER_MARGIN_S


@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        (Engine(), []),
        (Engine(startup_timeout=90.0), ["TimeoutStartSec=150"]),
        (Engine(vllm={"shutdown_timeout": 30}), []),
        (Engine(vllm={"shutdown_timeout": 600}), ["TimeoutStopSec=645"]),
        (Engine(vllm={"shutdown_timeout": 0}), ["TimeoutStopSec=45"]),
    ],
)
def test_the_units_limits_follow_the_engines(engine: Engine, lines: list[str]) -> None:
    text = "".join(text or "" for text in units(Config(engines=(engine,))).values())
    assert [line for line in text.splitlines() if line.startswith("Timeout")] == lines


@pytest.mark.parametrize(
    ("model", "condition"),
    [
        ("builtin:smollm2-135m", "/var/lib/llm-appliance/models/builtin/smollm2-135m/.complete"),
        ("org/model", "/var/lib/llm-appliance/models/huggingface/org/model/.complete"),
        ("/srv/model", None),  # the operator's own directory has no such mark
    ],
)
def test_a_model_that_is_still_to_be_fetched_keeps_its_engine_waiting(model: str, condition: str | None) -> None:
    text = units(Config(engines=(Engine(model=model),)))["llm-engine@default.service.d/50-appliance.conf"] or ""
    found = [line for line in text.splitlines() if line.startswith("ConditionPathExists=")]
    assert found == ([] if condition is None else [f"ConditionPathExists={condition}"])
