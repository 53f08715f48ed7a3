"""A bundle on a real disk, from sources that answer, fail and hang."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance import names
from appliance.config import source
from appliance.host.command import Silent, output_of
from appliance.host.incidents import Store
from appliance.host.journal import Journal
from appliance.host.places import Places
from appliance.supervisor import sources
from appliance.supervisor.incident import Lost, ask_all, bounded, collect
from appliance.supervisor.recorder import Recorder
from appliance.supervisor.sources import Missing, Subject
from appliance.wire.incident import Incident

SECRET = "Zq9xSecretValue77"
ABOUT = Incident(id="20261129T173000Z-chat-engine-died", engine="chat", at=1e9, kind="death", cause="engine-died",
                 reason=f"it said {SECRET}", evidence=(f"line {SECRET}",))  # fmt: skip


def subject(home: Path, smi: str = "echo GPU", records: list[dict[str, object]] | None = None) -> Subject:
    config = home / "config.toml"
    config.write_text(f'[[engine]]\nname = "chat"\n[engine.env]\nHF_TOKEN = "{SECRET}"\nNCCL_DEBUG = "INFO"\n')
    return Subject(
        "chat", "run", "", source.effective(str(config)), Places(str(home / "run"), str(home / "state")),
        lambda engine: records or [], ("/bin/sh", "-c", smi), {"vllm": "0.32.0"},
    )  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_what_answers_is_kept_and_what_does_not_is_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "incidents"))
    records: list[dict[str, object]] = [{"t": 1.0, "src": "journal", "msg": f"token={SECRET}x prompt: 'Ada'"}]
    kept = asyncio.run(collect(ABOUT, subject(tmp_path, records=records), store))
    (bundle,) = store.all()
    assert bundle.incident == kept
    assert set(kept.collected) == {"config.toml", "nvidia-smi.txt", "timeline.jsonl"} | (
        {"kernel.log"} & set(kept.collected)
    )
    assert kept.missing["processes.txt"].startswith("the launcher does not answer")
    assert kept.missing["metrics.txt"].startswith("/metrics: ")
    assert kept.facts == {"vllm": "0.32.0"}
    assert 'NCCL_DEBUG = "INFO"' in (tmp_path / "incidents" / ABOUT.id / "config.toml").read_text()
    for path in (tmp_path / "incidents").rglob("*"):
        assert path.is_dir() or (SECRET not in path.read_text() and "Ada" not in path.read_text()), path
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640)
    assert json.loads((tmp_path / "incidents" / ABOUT.id / "timeline.jsonl").read_text())["src"] == "journal"


@pytest.fixture
def short() -> Iterator[Path]:
    """A socket's path may have 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    "lines",
    [
        [{"part": "../../planted", "text": "x"}], [{"part": "/a", "text": "x"}], [{"part": ".x", "text": "x"}],
        [{"part": "", "text": "x"}], [{"part": "a\n", "text": "x"}], [{"text": "x"}],
        [{"part": chr(97 + number % 26) * (1 + number // 26), "text": "x"} for number in range(500)],
        [["done"]], [3], ["[" * 100_000],
    ],
)  # fmt: skip
def test_a_launcher_writes_no_files_of_its_choosing(short: Path, lines: list[object]) -> None:
    """It runs as its engine's user, and whoever has got into the engine may answer in its place."""

    async def launcher(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        for line in lines:
            writer.write((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")
        writer.write(b'{"done": true, "ok": true, "message": ""}\n')
        writer.close()

    async def story() -> Incident:
        path = names.engine_evidence("chat", str(short / "run"))
        os.makedirs(os.path.dirname(path))
        server = await asyncio.start_unix_server(launcher, path)
        try:
            return await collect(ABOUT, subject(short), Store(str(short / "incidents")))
        finally:
            server.close()

    kept = asyncio.run(asyncio.wait_for(story(), 30))
    assert "shm.txt" in kept.missing and "processes.txt" in kept.missing
    assert len(kept.collected) < 10 and all("/" not in name for name in kept.collected)
    assert not (short / "planted.txt").exists()


def test_another_runs_answers(tmp_path: Path) -> None:
    """A launcher that has begun the next run has no evidence of this one; the verdict has its lines."""

    async def launcher(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        part = "processes" if asked["verb"] == "stacks" else asked["verb"]
        if asked["run"] == "new":
            writer.write(json.dumps({"part": part, "text": "of the new run"}).encode() + b"\n")
        writer.write(json.dumps({"done": True, "ok": asked["run"] == "new", "message": names.ANOTHER_RUN}).encode())
        writer.close()

    async def gather() -> None:
        about = subject(tmp_path)
        about = replace(about, run="old", group=Path("/proc/self/cgroup").read_text().rpartition(":")[2].strip())
        path = Path(names.engine_evidence("chat", about.places.run))
        path.parent.mkdir(parents=True)
        server = await asyncio.start_unix_server(launcher, str(path))
        verdict = Path(names.engine_verdict("chat", about.places.run))
        verdict.write_text(json.dumps({"v": 1, "start": "x", "lines": ["what it died of"]}))
        found = sources.sources(about)
        assert await found["lines.log"]() == {"lines.log": "what it died of\n"}
        for name in ("processes.txt", "shm.txt"):
            with pytest.raises(Missing, match="another run has begun"):
                await found[name]()
        server.close()

    asyncio.run(asyncio.wait_for(gather(), 30))


def test_sources_that_hang_or_break_cost_their_deadline_and_nothing_else() -> None:
    async def hangs() -> dict[str, str]:
        await asyncio.sleep(600)
        return {}

    async def breaks() -> dict[str, str]:
        raise ValueError("no such thing")

    async def lacks() -> dict[str, str]:
        raise Missing("it has none")

    async def answers() -> dict[str, str]:
        return {"d.txt": "d", "more.txt": "m"}

    asked = {"a.txt": hangs, "b.txt": breaks, "c.txt": lacks, "d.txt": answers}
    begun = time.monotonic()
    found, missing = asyncio.run(ask_all(asked, 0.2))
    assert found == {"d.txt": "d", "more.txt": "m"}
    assert missing == {"a.txt": "not there within 0 s", "b.txt": "ValueError: no such thing", "c.txt": "it has none"}
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("script", "kept"),
    [("echo one; echo two", "one\ntwo\n"), ("yes 'GPU line' | head -n 9999; echo LAST", "GPU line\nGPU line\nLAST\n")],
)
def test_of_a_long_answer_the_end_is_kept_from_a_whole_line_on(script: str, kept: str) -> None:
    assert asyncio.run(output_of(("/bin/sh", "-c", script), 30.0, 27)).decode() == kept


@pytest.mark.parametrize(
    ("argv", "deadline_s", "why"),
    [
        (("no-such-program",), 5.0, "no-such-program is not installed"),
        (("/bin/sh", "-c", "exit 3"), 30.0, "/bin/sh ended with status 3"),
        (("/bin/sh", "-c", "exec sleep 600"), 0.2, "/bin/sh did not end within 0 s"),
    ],
)
def test_a_program_without_an_answer_is_not_waited_for(argv: tuple[str, ...], deadline_s: float, why: str) -> None:
    with pytest.raises(Silent, match=why):
        asyncio.run(output_of(argv, deadline_s, 100))


def test_a_file_is_bounded() -> None:
    assert bounded("short\n", 10) == b"short\n"
    assert bounded("one line\ntwo\nthree\n", 10) == b"three\n"


def test_a_disk_that_is_nearly_full_gets_the_story_alone(tmp_path: Path, small: Path) -> None:
    store = Store(str(small))
    kept = asyncio.run(collect(ABOUT, subject(tmp_path), store))
    assert kept.collected == {} and kept.missing == {"*": "the disk is nearly full"}
    assert list(store.all()[0].files) == ["incident.json"]


def test_a_disk_that_is_full_gets_nothing_and_leaves_nothing(tmp_path: Path, small: Path) -> None:
    with open(small / "full", "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(Lost, match="no space left"):
        asyncio.run(collect(ABOUT, subject(tmp_path), Store(str(small))))
    assert os.listdir(small) == ["full"]


def test_a_death_loop_keeps_one_bundle_and_counts(tmp_path: Path) -> None:
    async def deaths() -> list[str]:
        recorder = Recorder(str(tmp_path / "incidents"), Journal("test", path="/nowhere"))
        recorder.load()
        ids = [recorder.death(replace(ABOUT, id="", at=1e9 + n), lambda: subject(tmp_path)) for n in range(5)]
        ids.append(recorder.death(replace(ABOUT, id="", at=1e9 + 5, cause="worker-died"), lambda: subject(tmp_path)))
        await recorder.close(60.0)
        again = recorder.death(replace(ABOUT, id="", at=1e9 + 6), lambda: subject(tmp_path))
        await recorder.close(60.0)
        return [*ids, again]

    ids = asyncio.run(asyncio.wait_for(deaths(), 60))
    assert len(set(ids)) == 2 and ids[0] == ids[4] == ids[6]
    bundles = {bundle.incident.id: bundle.incident for bundle in Store(str(tmp_path / "incidents")).all()}
    assert set(bundles) == set(ids)
    assert bundles[ids[0]].again == (1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4, 1e9 + 6)


def test_leftovers_of_a_killed_supervisor_are_removed_and_strangers_stay(tmp_path: Path) -> None:
    root = tmp_path / "incidents"
    store = Store(str(root))
    store.describe(store.begin(ABOUT.id), ABOUT)
    (root / "20261129T173000Z-chat-x").mkdir()  # no incident.json: not ours to judge
    recorder = Recorder(str(root), Journal("test", path="/nowhere"))
    recorder.load()
    assert os.listdir(root) == ["20261129T173000Z-chat-x"]
    assert recorder.recent == []
