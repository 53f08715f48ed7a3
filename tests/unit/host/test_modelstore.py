from __future__ import annotations

import getpass
import os
from pathlib import Path

from appliance import names
from appliance.config.model import Config, Engine, Models
from appliance.host import modelstore
from appliance.host.modelstore import MISSING, READY, Model


def test_each_model_once_in_start_order_and_none_for_remote_engines() -> None:
    config = Config(
        engines=(
            Engine(name="b", model="org/x", priority=2),
            Engine(name="a", model="builtin:smollm2-135m"),
            Engine(name="c", model="org/x"),
            Engine(name="far", model="org/y", remote=("http://127.0.0.1:1",)),
            Engine(name="own", model="/srv/m"),
        )
    )
    found = modelstore.configured(config, "/m")
    assert [(one.model, one.path, one.engines) for one in found] == [
        ("builtin:smollm2-135m", "/m/builtin/smollm2-135m", ("a",)),
        ("org/x", "/m/huggingface/org/x", ("c", "b")),
        ("/srv/m", "/srv/m", ("own",)),
    ]
    other = Config(models=Models(directory="/d", source="modelscope"), engines=(Engine(model="org/x"),))
    assert modelstore.configured(other)[0].path == "/d/modelscope/org/x"


def test_a_revision_is_kept_whatever_the_name(tmp_path: Path) -> None:
    models = ("org/x", "gpt2", "/srv/m", "builtin:smollm2-135m")
    engines = tuple(Engine(name=f"e{n}", model=model, vllm={"revision": "v1"}) for n, model in enumerate(models))
    found = [one.model for one in modelstore.configured(Config(engines=engines), "/m")]
    assert found == ["org/x@v1", "gpt2@v1", "/srv/m", "builtin:smollm2-135m"]


def test_what_flags_name_beside_the_model_is_needed_too() -> None:
    flags = {
        "revision": "v1",
        "tokenizer": "org/tokens",
        "tokenizer_revision": "v2",
        "hf_config_path": "/srv/config",
        "speculative_config": {"method": "eagle", "model": "org/draft", "num_speculative_tokens": 3},
        "lora_modules": ["sql=org/sql-adapter", "own=/srv/own", {"name": "x", "path": "org/x-adapter"}],
    }
    config = Config(engines=(Engine(name="a", model="org/x", vllm=flags), Engine(name="b", model="org/draft")))
    found = modelstore.configured(config, "/m")
    assert [(one.model, one.path, one.engines) for one in found] == [
        ("org/x@v1", "/m/huggingface/org/x@v1", ("a",)),
        ("org/tokens@v2~files", "/m/huggingface/org/tokens@v2~files", ("a",)),
        ("org/draft", "/m/huggingface/org/draft", ("a", "b")),
        ("org/sql-adapter", "/m/huggingface/org/sql-adapter", ("a",)),
        ("org/x-adapter", "/m/huggingface/org/x-adapter", ("a",)),
    ]


def test_a_fetched_model_is_ready_with_its_mark(tmp_path: Path) -> None:
    model = Model("org/x", str(tmp_path), ("a",))
    assert modelstore.standing(model) == MISSING
    (tmp_path / ".complete").touch()
    assert modelstore.standing(model) == READY


def test_what_lies_there(tmp_path: Path) -> None:
    for name in ("builtin/smollm2-135m", "builtin/.smollm2-135m.x1", "huggingface/org/x/onnx", "huggingface/gpt2/onnx",
                 "huggingface/begun/.cache", "other/org/z"):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "huggingface/gpt2/config.json").touch()
    assert modelstore.stored(str(tmp_path)) == (
        ("builtin:smollm2-135m", str(tmp_path / "builtin/smollm2-135m")),
        ("begun", str(tmp_path / "huggingface/begun")),
        ("gpt2", str(tmp_path / "huggingface/gpt2")),
        ("org/x", str(tmp_path / "huggingface/org/x")),
    )
    assert modelstore.stored(str(tmp_path / "none")) == ()


def test_a_directory_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "m"
    assert modelstore.directory_standing(str(path)) == f"{path} does not exist"
    path.write_text("a file")
    assert modelstore.directory_standing(str(path)) == f"{path} is not a directory"
    path.unlink()
    path.mkdir()
    assert "has no config.json" in modelstore.directory_standing(str(path))
    (path / "config.json").write_text("{}")
    assert modelstore.directory_standing(str(path), user="no-such-user-here") == READY
    assert modelstore.directory_standing(str(path), user=getpass.getuser()) == READY


def test_a_directory_that_engines_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "closed" / "m"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / ".credentials").touch(mode=0o600)
    assert modelstore.directory_standing(str(path), user="nobody") == READY
    os.chmod(path / "config.json", 0o600)
    problem = modelstore.directory_standing(str(path), user="nobody")
    assert "cannot be read by the user nobody; chmod -R a+rX" in problem


def test_a_home_that_is_closed_bars_nobody(tmp_path: Path) -> None:
    """The directory itself is mounted for the engine; what lies above it is not in its way."""
    assert str(tmp_path).startswith(names.HIDDEN)
    path = tmp_path / "closed" / "m"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    os.chmod(path.parent, 0o700)
    assert modelstore.directory_standing(str(path), user="nobody") == READY
    os.chmod(path, 0o700)
    assert "m cannot be read by the user nobody" in modelstore.directory_standing(str(path), user="nobody")
