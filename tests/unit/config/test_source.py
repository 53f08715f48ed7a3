"""Files, drop-ins, the fallback, and where values come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.config import source
from appliance.config.model import Config
from appliance.errors import ConfigInvalid
from appliance.host import files

CORPUS = Path(__file__).resolve().parents[2] / "corpus/config"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text("")
    (tmp_path / "config.d").mkdir()
    return file


def dropin(config: Path, name: str, text: str) -> Path:
    file = config.parent / "config.d" / name
    file.write_text(text)
    return file


def test_an_empty_file_is_the_default_engine(config: Path) -> None:
    found = source.effective(str(config))
    assert found.config == Config()
    assert found.problems == ()
    assert (found.origin, found.files) == ("file", (str(config),))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    found = source.effective(str(tmp_path / "none.toml"))
    assert found.config is None
    assert found.origin == "none"
    [problem] = found.problems
    assert problem.file == str(tmp_path / "none.toml")
    assert "no such file" in problem.message


@pytest.mark.parametrize("kind", ["directory", "unreadable"])
def test_a_file_that_cannot_be_read_is_a_problem(config: Path, kind: str) -> None:
    config.unlink()
    config.mkdir() if kind == "directory" else config.symlink_to(config)
    found = source.effective(str(config))
    assert [problem.file for problem in found.problems] == [str(config)]


def test_later_files_win_key_by_key(config: Path) -> None:
    config.write_text(
        '[gateway]\nmax_body = "1MiB"\nlisten = ["127.0.0.1:1", "127.0.0.1:2"]\n[auth]\nrequired = true\n'
    )
    dropin(config, "20-later.toml", '[gateway]\nmax_body = "3MiB"\n')
    dropin(config, "10-site.toml", '[gateway]\nmax_body = "2MiB"\nlisten = ["127.0.0.1:3"]\n')
    dropin(config, ".hidden.toml", "broken")
    dropin(config, "note.txt", "broken")
    found = source.load(str(config))
    assert found.config is not None
    assert found.config.gateway.max_body == 3 << 20
    assert found.config.gateway.listen == ("127.0.0.1:3",)
    assert [os.path.basename(file) for file in found.files] == ["config.toml", "10-site.toml", "20-later.toml"]
    assert found.place(("gateway", "max_body")) == (found.files[2], 2)
    assert found.place(("gateway", "listen", 0)) == (found.files[1], 3)
    assert found.place(("auth", "required")) == (found.files[0], 5)


def test_an_engine_in_a_dropin_merges_by_name_else_is_one_more(config: Path) -> None:
    config.write_text(
        '[[engine]]\nmodel = "a/one"\nenv = { A = "1" }\n[[engine]]\nname = "b"\nmodel = "a/two"\nreplicas = 2\n'
    )
    extra = dropin(
        config, "x.toml",
        '[[engine]]\nname = "b"\nreplicas = 3\n[engine.vllm]\nmax_num_seqs = 4\n'
        '[[engine]]\nname = "c"\nmodel = "a/three"\n[[engine]]\nname = "default"\nenv = { B = "2" }\n',
    )  # fmt: skip
    found = source.load(str(config))
    assert found.problems == ()
    assert found.config is not None
    engines = {engine.name: engine for engine in found.config.engines}
    assert list(engines) == ["default", "b", "c"]
    assert engines["b"].model == "a/two"
    assert engines["b"].replicas == 3
    assert engines["b"].vllm == {"max_num_seqs": 4}
    assert engines["default"].env == {"A": "1", "B": "2"}
    assert found.place(("engine", 1, "replicas")) == (str(extra), 3)
    assert found.place(("engine", 1, "model")) == (str(config), 6)
    assert found.place(("engine", 1, "name")) == (str(config), 5)
    assert found.place(("engine", 2, "model")) == (str(extra), 8)
    assert found.place(("engine", 0, "env", "B")) == (str(extra), 11)


def test_a_problem_names_the_dropin_it_is_in(config: Path) -> None:
    config.write_text('[[engine]]\nname = "a"\n')
    extra = dropin(config, "x.toml", '[[engine]]\nname = "a"\n\nreplicas = 0\n')
    [problem] = source.load(str(config)).problems
    assert (problem.file, problem.line, problem.key) == (str(extra), 4, "engine.replicas")


def test_a_bad_file_falls_back_to_the_last_good_one_and_says_why(config: Path) -> None:
    config.write_text('[[engine]]\nmodel = "a/good"\n')
    good = source.load(str(config))
    (config.parent / "last-good.toml").write_bytes(source.snapshot(str(config)))
    config.write_text("[[engine]\n")
    found = source.effective(str(config))
    assert found.origin == "last-good"
    assert found.config == good.config
    assert found.text_digest == good.text_digest
    assert [problem.line for problem in found.errors] == [1]
    assert source.load(str(config)).config is None


def test_settings_that_were_rolled_back_are_not_in_force_until_they_differ(config: Path) -> None:
    config.write_text('[[engine]]\nmodel = "a/good"\n')
    good = source.load(str(config))
    config.write_text('[[engine]]\nmodel = "a/bad"\n')
    bad = source.load(str(config))
    said = {"text_digest": bad.text_digest, "at": 1.0, "reason": "default: kv-none: no room"}
    files.replace_json(config.parent / "rejected.json", said)
    assert source.effective(str(config)).config == bad.config  # nothing better is there
    config.write_text('[[engine]]\nmodel = "a/good"\n')
    (config.parent / "last-good.toml").write_bytes(source.snapshot(str(config)))
    config.write_text('# a remark is no difference\n[[engine]]\nmodel = "a/bad"\n')
    found = source.effective(str(config))
    assert (found.config, found.origin, found.rolled_back) == (good.config, "last-good", True)
    [problem] = found.errors
    assert "was rolled back: default: kv-none: no room" in problem.message
    assert "llm-appliance apply" in problem.remedy
    assert source.load(str(config)).config == bad.config
    config.write_text('[[engine]]\nmodel = "a/better"\n')
    assert source.effective(str(config)).origin == "file"


@pytest.mark.parametrize(
    "torn", [b"", b"{", b'{"v": 1}', b'{"v": 1, "text_digest": ""}', b'{"v": 1, "text_digest": 3}']
)
def test_a_torn_record_of_a_rollback_rejects_nothing(config: Path, torn: bytes) -> None:
    (config.parent / "last-good.toml").write_bytes(source.snapshot(str(config)))
    (config.parent / "rejected.json").write_bytes(torn)
    assert source.effective(str(config)).origin == "file"


def test_dropins_do_not_touch_the_last_good_one(config: Path) -> None:
    (config.parent / "last-good.toml").write_bytes(source.snapshot(str(config)))
    dropin(config, "bad.toml", "nonsense = 1\n")
    found = source.effective(str(config))
    assert found.origin == "last-good"
    assert found.config == Config()


def test_without_anything_valid_there_is_nothing(config: Path) -> None:
    config.write_text("x")
    (config.parent / "last-good.toml").write_text("y = ")
    found = source.effective(str(config))
    assert (found.config, found.origin) == (None, "none")
    assert {problem.file for problem in found.problems} == {str(config)}


def test_a_snapshot_of_a_bad_file_is_refused(config: Path) -> None:
    config.write_text("nonsense = 1\n")
    with pytest.raises(ConfigInvalid):
        source.snapshot(str(config))


@pytest.mark.parametrize("file", sorted((CORPUS / "valid").glob("*.toml")), ids=lambda file: file.stem)
def test_a_snapshot_loads_to_the_same_configuration(file: Path, tmp_path: Path) -> None:
    written = tmp_path / "config.toml"
    written.write_bytes(source.snapshot(str(file)))
    first, second = source.load(str(file)), source.load(str(written))
    assert first.config is not None
    assert second.config == first.config
    assert second.text_digest == first.text_digest
    assert source.snapshot(str(written)) == written.read_bytes()


def test_the_digest_is_of_settings_not_of_their_form(config: Path) -> None:
    config.write_text('[gateway]\nmax_body = "2MiB"\n')
    first = source.load(str(config)).text_digest
    config.write_text('# a comment\ngateway = { max_body = "2MiB" }\n')
    assert source.load(str(config)).text_digest == first
    config.write_text('[gateway]\nmax_body = "3MiB"\n')
    assert source.load(str(config)).text_digest != first


def test_a_windows_file_and_a_byte_order_mark_are_read(config: Path) -> None:
    config.write_bytes(b"\xef\xbb\xbf[auth]\r\nrequired = true\r\nx = 1\r\n")
    [problem] = source.load(str(config)).problems
    assert (problem.line, problem.key) == (3, "auth.x")


@pytest.mark.parametrize(
    "text",
    [
        f"[gateway.admission]\nqueue_size = 1{'0' * 5000}\n",
        f"[gateway.admission]\nqueue_size = 0x1{'0' * 5000}\n",
        '[[engine]]\n[engine.vllm]\ntask = [["embed"]]\ngpu_memory_utilization = 1' + "0" * 400 + "\n",
    ],
)
def test_no_value_is_strange_enough_to_raise(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    (tmp_path / "last-good.toml").write_text("")
    file.write_text(text)
    found = source.effective(str(file))
    assert found.errors and found.origin == "last-good"
    assert all(problem.file == str(file) for problem in found.errors)
