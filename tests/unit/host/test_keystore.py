from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.model import PRIORITIES, KeyLimits
from appliance.errors import UsageError
from appliance.host import keystore
from appliance.host.keystore import Key, KeysInvalid

NOW = 1_800_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


def test_a_key_is_found_by_its_secret_alone(file: str) -> None:
    key, secret = keystore.create(file, "alice", NOW, models=["a", "b"], expires=NOW + 10)
    keys = keystore.read(file)
    assert secret.startswith("sk-") and len(secret) >= 46
    assert secret not in Path(file).read_text()
    assert keys.find(secret, NOW) == key == keys.keys[0]
    assert keys.find(secret + "x", NOW) is None and keys.find("", NOW) is None and keys.find("é\udcff", NOW) is None
    assert (key.state(NOW), key.state(NOW + 10)) == ("good", "expired")


def test_secrets_differ_and_the_file_is_closed(file: str) -> None:
    secrets = {keystore.create(file, f"k{n}", NOW)[1] for n in range(20)}
    assert len(secrets) == 20
    assert stat.S_IMODE(Path(file).stat().st_mode) in (0o600, 0o640)


def test_revoked_and_rotated(file: str) -> None:
    keystore.create(file, "alice", NOW)
    _, old = keystore.create(file, "bob", NOW)
    rotated, new = keystore.rotate(file, "bob", NOW, overlap=60)
    keys = keystore.read(file)
    assert keys.find(new, NOW) == keys.find(old, NOW + 59) == rotated
    assert keys.find(old, NOW + 60) is None
    _, newest = keystore.rotate(file, rotated.id, NOW)
    assert keystore.read(file).find(new, NOW) is None
    keystore.revoke(file, "bob", NOW)
    found = keystore.read(file).find(newest, NOW)
    assert found and found.state(NOW) == "revoked"
    for act in (keystore.revoke, keystore.rotate):
        with pytest.raises(UsageError):
            act(file, "bob", NOW)
        with pytest.raises(UsageError):
            act(file, "nobody", NOW)
    keystore.create(file, "bob", NOW)  # the name is free again
    with pytest.raises(UsageError):
        keystore.create(file, "bob", NOW)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "x" * 65, 'a"'])
def test_names_that_are_none(file: str, name: str) -> None:
    with pytest.raises(UsageError):
        keystore.create(file, name, NOW)
    assert not Path(file).exists()


@pytest.mark.parametrize("model", ["a\x7f", "a\n", "a\x1b[8m", "a\udcff"])
def test_a_model_that_cannot_be_named_spoils_no_file(file: str, model: str) -> None:
    keystore.create(file, "alice", NOW)
    before = Path(file).read_bytes()
    with pytest.raises(UsageError, match="no name of a model"):
        keystore.create(file, "bob", NOW, models=["chat", model])
    assert Path(file).read_bytes() == before


def test_times_that_cannot_be_written_spoil_no_file(file: str) -> None:
    keystore.create(file, "alice", NOW)
    before = Path(file).read_bytes()
    with pytest.raises(UsageError, match="beyond the year 9999"):
        keystore.create(file, "bob", NOW, expires=NOW * 1000)
    with pytest.raises(UsageError, match="beyond the year 9999"):
        keystore.rotate(file, "alice", NOW, overlap=1e20)
    assert Path(file).read_bytes() == before


def test_early_years_are_read_back(file: str) -> None:
    Path(file).write_text(f"[[key]]\nid='a'\nname='old'\nhash='{HASH}'\nexpires=0988-01-01T00:00:00Z\n")
    keystore.create(file, "alice", NOW)
    assert [key.state(NOW) for key in keystore.read(file).keys] == ["expired", "good"]


HASH, OTHER = "sha256:" + "0" * 64, "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key = 3", "[[key]]"),
        ("[[key]]\nid = 'a'", "key 1: hash"),
        (f"[[key]]\nhash = '{HASH}'", "key 1: id and name"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\nmodels = 'x'", "models"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\nexpires = 'soon'", "expires"),
        (f"[[key]]\nid='a'\nname=3\nhash='{HASH}'", "name must be"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\n[[key]]\nid='a'\nname='b'\nhash='{OTHER}'", "same id"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\n[[key]]\nid='b'\nname='b'\nhash='{HASH}'", "same hash"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\nrpm = 0", "rpm must be a whole number"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\ntpm = '9'", "tpm must be a whole number"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\nparallel = true", "parallel must be a whole number"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\nclass = 'first'", "interactive, standard, batch"),
        ("[[key", "not valid TOML"),
        ("key = " + "[" * 100_000, "nested too deeply"),
        (f"[[key]]\nid='a'\nname='a'\nhash='{HASH}'\nrpm = {'9' * 5000}", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_bad_file_names_the_place(file: str, text: str, words: str) -> None:
    Path(file).write_text(text)
    with pytest.raises(KeysInvalid, match=None) as caught:
        keystore.read(file)
    assert words in caught.value.message and file in caught.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
def test_who_may_not_look_is_told_who_may(file: str) -> None:
    keystore.create(file, "alice", NOW)
    os.seteuid(65534)
    try:
        with pytest.raises(KeysInvalid, match="permission denied") as caught:
            keystore.read(file)
    finally:
        os.seteuid(0)
    assert (caught.value.exit_status, caught.value.hint) == (3, "run the command as root (sudo)")


def test_a_missing_file_holds_no_key_and_a_directory_is_bad(file: str, tmp_path: Path) -> None:
    assert keystore.read(file).keys == ()
    with pytest.raises(KeysInvalid):
        keystore.read(str(tmp_path))


values = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3),
    st.dictionaries(st.from_regex(r"[a-z]{9,12}", fullmatch=True), values | st.lists(values, max_size=2) |
                    st.dictionaries(st.text("ab.\"\x7f", min_size=1, max_size=4), values, max_size=2), max_size=3),
    st.builds(KeyLimits, priority=st.sampled_from(PRIORITIES),
              **dict.fromkeys(keystore.LIMITS, st.none() | st.integers(1, 2**53))),
)  # fmt: skip
def test_what_is_written_is_read_back(models: list[str], rest: dict[str, object], limits: KeyLimits) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/keys.toml"
        key = Key(
            id="k-1", name="a", hash=HASH, created=NOW, expires=NOW + 1, models=tuple(models), limits=limits, rest=rest
        )
        keystore.write(path, [key])
        assert keystore.read(path).keys == (key,)
