from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.config import source
from appliance.policy.reconcile import Desired, Seen, UnitState
from appliance.supervisor import drift
from appliance.supervisor.drift import Drift, Watch

CHAT = '[[engine]]\nname = "chat"\nmodel = "org/x"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CHAT)
    return path


def rejected(path: Path) -> None:
    path.write_text(CHAT + "[gateway]\nmax_body = '1MiB'\n")
    said = {"v": 1, "text_digest": source.load(str(path)).text_digest, "reason": "chat did not start"}
    (path.parent / "rejected.json").write_text(json.dumps(said))


def dropin(path: Path) -> None:
    (path.parent / "config.d").mkdir()
    (path.parent / "config.d/10.toml").write_text("[gateway]\nmax_body = '1MiB'\n")


def edit(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (edit(CHAT), None, ""),
        (edit("# the same settings\n" + CHAT + "\n"), None, ""),
        (edit(CHAT + "gpus = 'auto'\n"), None, ""),  # a default written down
        (edit("[gateway]\nmax_body = '1MiB'\n" + CHAT), "settings", "1 setting is edited and not applied: gateway.max"),
        (dropin, "settings", "gateway.max_body"),
        (edit(CHAT + "[engine.vllm]\nmax_model_len = 9\n"), "settings", "engine.vllm.max_model_len of chat"),
        (edit(CHAT + '[[engine]]\nname = "b"\nmodel = "org/b"\n'), "settings", "engine of b"),
        (edit("[gateway]\nmax_body = '1MiB'\nqueue = 1\n"), "invalid", "config.toml:3"),
        (edit("[[["), "invalid", "cannot be used"),
        (Path.unlink, "invalid", "there is no such file"),
        (rejected, "rolled-back", "the configuration file as it stands was rolled back: chat did not start"),
    ],
)  # fmt: skip
def test_the_file_against_the_settings_in_force(
    config: Path, change: Callable[[Path], object], kind: str | None, words: str
) -> None:
    running = source.effective(str(config))
    watch = Watch(str(config))
    ours = [one for one in watch.look(running, (), {}) if one.kind != "unit"]
    assert ours == []
    change(config)
    found = [one for one in watch.look(running, (), {}) if one.kind != "unit"]
    assert [one.kind for one in found] == ([kind] if kind else [])
    for one in found:
        assert words in one.text
        assert one.remedy in ("llm-appliance apply", "llm-appliance check")


def test_many_settings_are_counted_and_named_in_full_for_programs(config: Path) -> None:
    running = source.effective(str(config))
    config.write_text(
        "[gateway]\nmax_body = '1MiB'\n[gateway.timeouts]\ndrain = '1s'\nstall = '2s'\n[supervisor]\ninterval = '1s'\n"
        + CHAT
    )
    (found,) = drift.of_file(str(config), running, source.load(str(config)))
    assert found.text.startswith("4 settings are edited and not applied: ") and found.text.endswith(" and 1 more")
    assert len(found.settings) == 4 and "supervisor.interval" in found.settings


@pytest.mark.parametrize(
    ("seen", "differs"),
    [
        (Seen(UnitState.UP, digest="a"), False),
        (Seen(UnitState.UP, digest="b"), True),
        (Seen(UnitState.UP), False),  # its launcher has not said
        (Seen(UnitState.DOWN, digest="b"), False),
    ],
)
def test_an_engine_against_its_settings(seen: Seen, differs: bool) -> None:
    found = list(drift.of_engines([Desired("chat", "chat", "a", frozenset())], {"chat": seen}))
    assert [one.engine for one in found] == (["chat"] if differs else [])
    assert list(drift.of_engines([Desired("chat", "chat", "a", frozenset())], {})) == []


def test_units_that_others_change(tmp_path: Path) -> None:
    def put(name: str, text: str = "[Service]\n") -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert list(drift.of_units([str(tmp_path), str(tmp_path / "none")])) == []
    put("llm-engine@.service.d/override.conf")
    put("llm-engine@.service.d/second.conf")
    put("llm-engine@.service.d/notes.txt")
    put("llm-gateway.service")
    put("ssh.service.d/override.conf")
    put("llm-appliance.target.wants/x.service")
    (tmp_path / "llm-supervisor.service").symlink_to("/dev/null")
    (tmp_path / "llm-gateway.socket").symlink_to("/usr/lib/systemd/system/llm-gateway.socket")
    (tmp_path / "llm-runtime.service.d").mkdir()
    where = str(tmp_path)
    assert list(drift.of_units([where])) == [
        Drift("unit", f"llm-engine@.service is changed by {where}/llm-engine@.service.d/override.conf and 1 more",
              "systemctl revert llm-engine@.service"),
        Drift("unit", f"llm-gateway.service is changed by {where}/llm-gateway.service",
              "systemctl revert llm-gateway.service"),
        Drift("unit", "llm-supervisor.service is masked", "systemctl unmask llm-supervisor.service"),
    ]  # fmt: skip
