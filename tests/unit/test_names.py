from __future__ import annotations

import pytest

from appliance import names
from appliance.config.model import Config, Engine


@pytest.mark.parametrize(
    ("unit", "instance"),
    [
        ("llm-engine@chat.service", "chat"),
        ("llm-engine@chat-2.service", "chat-2"),
        ("llm-engine@.service", None),
        ("llm-engine@../../dbus.service", None),
        ("llm-engine@Chat.service", None),
        ("llm-engine@chat\n.service", None),
        ("llm-gateway.service", None),
        ("llm-engine@chat.socket", None),
        (f"llm-engine@{'a' * 64}.service", None),
    ],
)
def test_only_units_we_would_have_made_are_engines(unit: str, instance: str | None) -> None:
    assert names.instance_of(unit) == instance


def test_an_engine_unit_names_its_instance() -> None:
    assert names.instance_of(names.engine_unit("chat-2")) == "chat-2"


@pytest.mark.parametrize(
    ("model", "directory", "served"),
    [
        ("builtin:smollm2-135m", "/m/builtin/smollm2-135m", "smollm2-135m"),
        ("Qwen/Qwen2.5-14B-Instruct-AWQ", "/m/huggingface/Qwen/Qwen2.5-14B-Instruct-AWQ", "Qwen2.5-14B-Instruct-AWQ"),
        ("/srv/models/mine", "/srv/models/mine", "mine"),
    ],
)
def test_a_model_has_a_place_and_a_name(model: str, directory: str, served: str) -> None:
    assert names.model_directory(model, "/m") == directory
    assert Engine(model=model).served == (served,)


def test_replicas_are_numbered_from_the_second() -> None:
    chat = Engine(name="chat", replicas=3)
    away = Engine(name="away", remote=("http://a", "http://b"))
    first = Engine(name="first", priority=-1)
    config = Config(engines=(chat, away, first))
    assert chat.instances == ("chat", "chat-2", "chat-3")
    assert away.instances == ("away", "away-2")
    assert config.local_instances == ("first", "chat", "chat-2", "chat-3")
    assert config.engine_of("chat-3") is chat
    assert config.engine_of("chat-4") is None
