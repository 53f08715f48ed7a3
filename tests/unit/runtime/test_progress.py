from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.host.journal import Journal
from appliance.runtime.progress import Progress, Speed, amount

MIB = 1 << 20


@pytest.mark.parametrize(
    ("done", "total", "speed", "expected"),
    [
        (63 * MIB, 133 * MIB, 70 * MIB / 120, ("downloading: 47 % (63 of 133 MiB), 2m left", 47)),
        (63 * MIB, 133 * MIB, None, ("downloading: 47 % (63 of 133 MiB)", 47)),
        (63 * MIB, 133 * MIB, 0.0, ("downloading: 47 % (63 of 133 MiB)", 47)),
        (0, 2560 * MIB, 1.0 * MIB, ("downloading: 0 % (0.0 of 2.5 GiB), 42m 40s left", 0)),
        (2560 * MIB, 2560 * MIB, 5.0, ("downloading: 100 % (2.5 of 2.5 GiB)", 100)),
        (300 * MIB, 133 * MIB, 5.0, ("downloading: 100 % (300 of 133 MiB)", 100)),
        (0, 0, None, ("downloading: 100 % (0 of 0 B)", 100)),
        (5 * MIB, None, 1.0, ("downloading: 5 MiB", None)),
    ],
)
def test_amount(done: int, total: int | None, speed: float | None, expected: tuple[str, int | None]) -> None:
    assert amount("downloading", done, total, speed) == expected


def test_speed_is_that_of_the_last_half_minute() -> None:
    speed = Speed()
    assert speed.add(100.0, 0) is None
    assert speed.add(100.5, 10) is None
    assert speed.add(102.0, 200) == 100.0
    assert speed.add(140.0, 200) is None  # all older readings are gone
    assert speed.add(150.0, 300) == 10.0


def test_the_state_file_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"

    def told() -> dict[str, object]:
        found: dict[str, object] = json.loads(path.read_text())
        return found

    with Progress(Journal("llm-runtime", path=str(tmp_path / "no-journal")), str(path)) as progress:
        assert not path.exists()  # nothing before the builder's lock is held
        progress.describe("0.32.0", "cpu")
        progress.phase("downloading", "downloading", lambda: (MIB, 4 * MIB))
        first = told()
        assert (first["v"], first["phase"], first["message"], first["percent"], first["version"], first["device"]) == (
            1, "downloading", "downloading: 25 % (1 of 4 MiB)", 25, "0.32.0", "cpu")  # fmt: skip
        progress.models({"a": "ready"})
        progress.phase("downloading", "downloading b")
        assert (told()["since"], told()["percent"], told()["models"]) == (first["since"], None, {"a": "ready"})
        progress.fail("it broke", "mend it")
        assert (told()["phase"], told()["message"]) == ("failed", "it broke (mend it)")
    assert capsys.readouterr().err.splitlines() == [
        "llm-runtime: downloading: 25 % (1 of 4 MiB)",
        "llm-runtime: downloading b",
        "llm-runtime: it broke (mend it)",
    ]


def test_a_state_file_that_cannot_be_written_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Journal("x", path=str(tmp_path / "none")), str(tmp_path / "none/state.json")) as progress:
        progress.phase("installing", "installing")
        progress.phase("testing", "testing")
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_builder_that_broke_off_does_not_look_as_if_it_worked(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with pytest.raises(LookupError), Progress(Journal("x", path=str(tmp_path / "none")), str(path)) as progress:
        progress.phase("models", "fetching org/x")
        raise LookupError("nobody thought of it")
    told = json.loads(path.read_text())
    assert (told["phase"], "LookupError: nobody thought of it" in told["message"]) == ("failed", True)
