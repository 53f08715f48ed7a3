"""Models as the builder fetches them, with the hubs' clients as a fake; no network but loopback."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.buildstage import LIMIT, Bench, local


def with_token(bench: Bench, source: str = "huggingface") -> str:
    """A token, and a configuration that names it."""
    (bench.root / "token").write_text("t0ken\n")
    return local(bench, f'[models]\nsource = "{source}"\ntoken_file = "{bench.root}/token"\n')


def hub_model(bench: Bench, model: str, source: str = "huggingface") -> Path:
    """Have it configured, and the token; where it will lie."""
    bench.configure(with_token(bench, source).replace(f"{bench.root}/model", model))
    return bench.state / "models" / source / model


def test_models_of_a_hub(bench: Bench) -> None:
    more = '[[engine]]\nname = "two"\nmodel = "org/good"\n'
    more += '[[engine]]\nname = "three"\nmodel = "org/good"\nserved_names = ["x"]\n'
    bench.configure(with_token(bench).replace("[[engine]]", '[[engine]]\nname = "one"', 1) + more)
    told, log = bench.build()
    assert told["models"] == {f"{bench.root}/model": "ready", "org/good": "ready"}
    place = bench.state / "models/huggingface/org/good"
    assert sorted(path.name for path in place.iterdir()) == [".complete", "config.json", "model.safetensors"]
    assert json.loads((place / ".complete").read_text())["revision"] == "abc-None"
    assert log.count("fetching org/good") == 1
    assert "t0ken" not in log


@pytest.mark.slow
def test_what_an_engine_needs_beside_its_model(bench: Bench) -> None:
    """A revision, a tokenizer without the weights of its repository, and an adapter."""
    more = '[[engine]]\nname = "two"\nmodel = "org/good"\n[engine.vllm]\nrevision = "v1"\ntokenizer = "org/tokens"\n'
    more += 'enable_lora = true\nlora_modules = ["sql=org/adapter"]\n'
    bench.configure(with_token(bench).replace("[[engine]]", '[[engine]]\nname = "one"', 1) + more)
    told, _ = bench.build()
    models = bench.state / "models/huggingface/org"
    assert {name: state for name, state in told["models"].items() if not name.startswith("/")} == dict.fromkeys(
        ("org/good@v1", "org/tokens~files", "org/adapter"), "ready"
    )
    assert json.loads((models / "good@v1/.complete").read_text())["revision"] == "abc-v1"
    assert sorted(path.name for path in (models / "tokens~files").iterdir()) == [".complete", "config.json"]
    assert (models / "adapter/model.safetensors").exists()


@pytest.mark.slow
def test_models_of_modelscope(bench: Bench) -> None:
    """Its client is no part of the runtime: it comes for the time of the fetch, from the release's lock."""
    place = hub_model(bench, "org/good", "modelscope")
    told, _ = bench.build()
    assert told["models"] == {"org/good": "ready"}
    assert sorted(path.name for path in place.iterdir()) == [".complete", "config.json", "model.safetensors"]
    assert json.loads((place / ".complete").read_text())["revision"] == "master"
    assert not list(bench.runtimes.glob("*/lib/python*/site-packages/modelscope_hub"))
    hub_model(bench, "org/missing", "modelscope")
    assert "ModelScope has no model org/missing" in bench.build(status=78)[0]["message"]


@pytest.mark.slow
def test_a_file_that_came_damaged_is_fetched_once_more(bench: Bench) -> None:
    place = hub_model(bench, "org/damaged-once")
    assert bench.build()[0]["models"] == {"org/damaged-once": "ready"}
    assert (place / "model.safetensors").read_bytes() == b"w" * 5000
    place = hub_model(bench, "org/damaged-always")
    told, _ = bench.build(status=1)
    assert "model.safetensors is not what the hub describes" in told["message"]
    assert not (place / ".complete").exists()


@pytest.mark.slow
def test_what_is_named_complete_lies_on_the_disk(bench: Bench) -> None:
    """A power cut half a minute later would else leave that word, and empty files."""
    library, order = bench.root / "diskorder.so", bench.root / "order"
    source = Path(__file__).parents[2] / "support/diskorder.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=LIMIT)
    place = hub_model(bench, "org/good")
    process = bench.start(more={"LD_PRELOAD": str(library), "DISK_ORDER": str(order)})
    _, log = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, log
    told = [line for line in order.read_text().splitlines() if line == "syncfs" or line.endswith("/.complete")]
    assert told == ["syncfs", f"{bench.runtimes}/0.32.0-cpu/.complete", "syncfs", f"{place}/.complete"]


@pytest.mark.slow
def test_lengths_that_a_mirror_does_not_tell_are_not_zero(bench: Bench) -> None:
    place = hub_model(bench, "org/sizeless")
    assert bench.build()[0]["models"] == {"org/sizeless": "ready"}
    assert (place / "model.safetensors").stat().st_size == 5000


@pytest.mark.slow
def test_a_hub_that_lists_files_of_others_has_none_deleted(bench: Bench) -> None:
    place = hub_model(bench, "org/outside")
    place.parent.mkdir(parents=True)
    (place.parent / "kept").write_text("another's")
    told, _ = bench.build(status=1)
    assert "'../kept', which is no file of a model's directory" in told["message"]
    assert (place.parent / "kept").read_text() == "another's"


@pytest.mark.slow
def test_what_a_killed_client_has_left_does_not_grow(bench: Bench) -> None:
    place = hub_model(bench, "org/killed")
    for _ in range(2):
        assert "ended without a word" in bench.build(status=1)[0]["message"]
        assert len(list((place / ".cache").iterdir())) == 1


@pytest.mark.slow
def test_a_model_that_the_disk_has_no_room_for_is_not_begun(bench: Bench) -> None:
    place = hub_model(bench, "org/huge")
    told, _ = bench.build(status=1)
    assert "not enough disk space for model org/huge: 2097152" in told["message"]
    assert not (place / "config.json").exists()


@pytest.mark.parametrize(
    ("model", "status", "sentence"),
    [
        ("org/missing", 78, "has no model org/missing"),
        ("org/hidden", 78, "has no model org/hidden"),  # what is not there is 401 for who has no token
        ("org/gated", 78, "token_file"),
        ("org/empty", 1, "the hub lists no files of it"),
        ("org/portal", 1, "cannot be reached (Expecting value"),
        ("org/offline", 1, "cannot be reached (Name or service not known)"),
        ("builtin:nothing", 78, "there is no builtin:nothing"),
        ("/nowhere/at-all", 78, "/nowhere/at-all does not exist"),
    ],
)
@pytest.mark.slow
def test_a_model_that_cannot_be_had_is_explained_and_the_others_are_there(
    bench: Bench, model: str, status: int, sentence: str
) -> None:
    text = local(bench).replace("[[engine]]", '[[engine]]\nname = "one"', 1)
    bench.configure(f'{text}[[engine]]\nname = "two"\nmodel = "{model}"\n')
    told, _ = bench.build(status=status)
    if "config" in told["message"] and model.startswith("builtin"):  # refused before by the configuration's own laws
        assert model in told["message"]
        return
    assert told["phase"] == "failed"
    assert sentence in told["message"]
    assert told["models"][f"{bench.root}/model"] == "ready"
    assert told["models"][model] != "ready"
    assert os.readlink(bench.runtimes / "current") == "0.32.0-cpu"  # other engines can start
