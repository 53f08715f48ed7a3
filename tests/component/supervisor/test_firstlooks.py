"""First looks at suspected engines, with a launcher that counts who asks it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from appliance import clock, names
from appliance.config import source
from appliance.host.places import Places
from appliance.supervisor.firstlooks import FirstLooks
from appliance.supervisor.sources import Subject, since_first

SPY = '=== VLLM::EngineCor pid 7, parent 5, state R\nThread 7 (active): "MainThread"\n    step (core.py:1)\n'


class Launcher:
    """Answers `stacks`, or never."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = True
        self.waits, self.left = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        await reader.readline()
        if self.answers:
            writer.write(json.dumps({"part": "stacks", "text": SPY}).encode() + b"\n")
            writer.write(b'{"done": true, "ok": true, "message": ""}\n')
        else:
            self.waits.set()
            await reader.read()  # until the asker leaves
        writer.close()
        await writer.wait_closed()
        if not self.answers:
            self.left.set()


def test_once_a_silence(tmp_path: Path) -> None:
    async def story() -> None:
        launcher, places = Launcher(), Places(str(tmp_path / "r"), str(tmp_path / "s"))  # a socket's path is short
        path = names.engine_evidence("chat", places.run)
        os.makedirs(os.path.dirname(path))
        server = await asyncio.start_unix_server(launcher.serve, path)
        effective = source.effective(str(tmp_path / "none.toml"))
        looks = FirstLooks(lambda instance, run: Subject(instance, run, "", effective, places, lambda _: ()))
        for _ in range(3):
            looks.follow({"chat": "r1"}, {})
        await looks.settled("chat")
        first = looks.of("chat", "r1")
        assert launcher.asked == 1 and first is not None and first.files == {"stacks.txt": SPY}
        assert looks.of("chat", "r2") is None and looks.of("embed", "r1") is None
        looks.follow({}, {"chat": "r1"})  # it is being taken down: the look is evidence
        assert looks.of("chat", "r1") is first
        files, facts = since_first(first, {"stacks.txt": SPY}, clock.monotonic() + 60.0)
        assert "first suspected" in files["first-stacks.txt"] and "is where it was" in facts[0]
        looks.follow({}, {})
        assert looks.of("chat", "r1") is None
        looks.follow({"embed": "r1"}, {"chat": "r2"})  # who is taken down without suspicion is not looked at
        await looks.settled("embed")  # nobody answers there
        assert launcher.asked == 1 and looks.of("embed", "r1") is None
        launcher.answers = False
        looks.follow({"chat": "r2"}, {})
        await launcher.waits.wait()
        looks.follow({}, {})  # it moves again before the answer came
        assert looks.of("chat", "r2") is None
        await launcher.left.wait()
        await looks.close()
        server.close()

    asyncio.run(asyncio.wait_for(story(), 30))
    assert since_first(None, {"stacks.txt": SPY}, 1.0) == ({}, ())
