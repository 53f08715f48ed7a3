"""What `bench --tune` writes, run after run."""

from __future__ import annotations

from pathlib import Path

from appliance.cli import benchtune, dropin
from appliance.config import source
from appliance.policy.tuning import Setting, Tuning

ENGINES = '[[engine]]\nname = "a"\nmodel = "/m"\n[[engine]]\nname = "b"\nmodel = "/n"\n'
BATCH, QUEUE = "engine.vllm.max_num_seqs", "gateway.admission.queue_size"


def write(config: Path, engine: str, **values: int) -> None:
    settings = tuple(
        Setting({"batch": BATCH, "queue": QUEUE}[name], value, None, "why") for name, value in values.items()
    )
    path = dropin.path_of(str(config), benchtune.NAME)
    dropin.write(str(config), path, benchtune.document(path, Tuning(settings, ()), engine, ("head",)))


def test_a_run_keeps_what_former_runs_wrote_and_it_does_not_derive_anew(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(ENGINES)
    write(file, "a", batch=32, queue=240)
    write(file, "b", batch=8)
    write(file, "a", queue=100)
    config = source.load(str(file)).config
    assert config is not None and config.gateway.admission.queue_size == 100
    assert {one.name: dict(one.vllm) for one in config.engines} == {"a": {"max_num_seqs": 32}, "b": {"max_num_seqs": 8}}
    write(file, "b", batch=16)
    text = (tmp_path / "config.d/90-bench.toml").read_text()
    assert text.count("# head\n") == text.count("max_num_seqs = 16") == text.count("queue_size = 100") == 1
