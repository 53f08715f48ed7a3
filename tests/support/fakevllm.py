"""A `vllm` command that starts, logs, serves and dies like vLLM; what it does is told by its environment.

FAKE_VLLM is words joined by commas:

    log=NAME      print tests/corpus/vllmlog/NAME.txt instead of a healthy start, then exit with the status `exit`
    exit=N        that status (default 1)
    deaf          never listen                  status=N     every request is answered N
    gap=S         S seconds between two lines of the log
    tp=N          N workers
    say=FILE      its text, before it listens
    stubborn      it and its children ignore SIGTERM
    closing       after SIGTERM wait for clients for ever, as vLLM does after a drain that ran out of time

Like vLLM it runs in three generations: the command, `core`, `worker`; their pids stand in `pids` beside the socket.
SIGUSR1 is "the engine core is gone": it says so and exits 0. SIGUSR2 says so and stays. A request with `poison` (see
`fakeengine`) is an exception in the engine core, which ends in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.fakeengine import Engine, serve

CORPUS = Path(__file__).resolve().parents[1] / "corpus/vllmlog"
# An ignored SIGTERM is inherited. A worker of several ranks is a Python that can tell its stack, else `sleep` does.
CORE = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
ranks = int(sys.argv[1])
waits = "def waits_for_its_peers():\\n print(flush=True)\\n time.sleep(600)"
rank = [sys.executable, "-c", f"import time\\n{waits}\\nwaits_for_its_peers()"] if ranks > 1 else ["sleep", "600"]
workers = [subprocess.Popen(rank, stdout=subprocess.PIPE) for _ in range(ranks)]
if ranks > 1: [worker.stdout.readline() for worker in workers]
def turns_in_its_loop():
    print(os.getpid(), *(worker.pid for worker in workers), flush=True)
    time.sleep(600)
turns_in_its_loop()
"""
GONE = (
    "(APIServer pid=1) WARNING 11-29 11:49:17 [core_client.py:817] [shutdown] MPClient: engine core exited "
    "unexpectedly; starting cleanup",
    "(APIServer pid=1) ERROR 11-29 11:49:17 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.",
)

FATAL = (
    "(EngineCore pid=2) ERROR 11-29 11:49:17 [core.py:1210] EngineCore encountered a fatal error.",
    "(EngineCore pid=2) ERROR 11-29 11:49:17 [core.py:1210] Traceback (most recent call last):",
    "(EngineCore pid=2) ERROR 11-29 11:49:17 [core.py:1210]     logprobs = self.table[token]",
    "(EngineCore pid=2) ERROR 11-29 11:49:17 [core.py:1210] KeyError: 151936",
)


def script() -> dict[str, str]:
    words = (word.partition("=") for word in os.environ.get("FAKE_VLLM", "").split(",") if word)
    return {name: value or "1" for name, _, value in words}


def say(lines: list[str], gap: float) -> None:
    for line in lines:
        print(line, flush=True)
        if gap:
            time.sleep(gap)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


async def run(plan: dict[str, str], socket: Path) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end(status: int | None, lines: tuple[str, ...]) -> None:
        say(list(lines), 0)
        if status is not None and not ended.done():
            ended.set_result(status)

    def term() -> None:
        if "closing" in plan:
            print("INFO:     Waiting for connections to close. (CTRL+C to force quit)", flush=True)
        elif "stubborn" not in plan:
            end(0, ("INFO:     Application shutdown complete.",))

    loop.add_signal_handler(signal.SIGTERM, term)
    loop.add_signal_handler(signal.SIGUSR1, end, 0, GONE)
    loop.add_signal_handler(signal.SIGUSR2, end, None, GONE)
    if "deaf" not in plan:
        engine = Engine(option("--served-model-name"), fault=f"status={plan['status']}" if "status" in plan else "")
        engine.dies = lambda: end(0, (*FATAL, *GONE))
        await serve(engine, uds=str(socket))
    status = await ended
    os._exit(status)  # no manners: what it leaves is the launcher's to clear


def main() -> None:
    plan = script()
    gap = float(plan.get("gap", 0))
    lines = (CORPUS / f"{plan.get('log', 'healthy')}.txt").read_text().splitlines()
    if "log" in plan:
        say(lines, gap)
        sys.exit(int(plan.get("exit", 1)))
    socket = Path(option("--uds"))
    core = subprocess.Popen([sys.executable, "-c", CORE, plan.get("tp", "1"), *plan], stdout=subprocess.PIPE, text=True)
    assert core.stdout is not None
    told = map(int, core.stdout.readline().split())
    named = ["core", "worker", *(f"worker-{rank}" for rank in range(2, int(plan.get("tp", "1")) + 1))]
    pids = dict(zip(named, told, strict=True))
    (socket.parent / "pids").write_text(json.dumps({"api": os.getpid()} | pids))
    (socket.parent / "argv").write_text(json.dumps(sys.argv))
    (socket.parent / "environment").write_text(json.dumps(dict(os.environ)))
    say(lines[: next(i for i, line in enumerate(lines) if "Application startup complete" in line) + 1], gap)
    say(Path(plan["say"]).read_text().splitlines() if "say" in plan else [], 0)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(plan, socket))


if __name__ == "__main__":
    main()
