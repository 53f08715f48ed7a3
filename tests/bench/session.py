"""The order of runs, and what becomes of one that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from . import proxies
from .engine import Engine
from .gateway import gateway, write_keys
from .load import faults
from .scenarios import ALL, DIRECT, GATEWAY, NGINX, OWN, ROUTER, USUAL, USUAL_KEYS, Row, Scenario, make_room, warm

Start = Callable[[int, Path, Path], AbstractContextManager[proxies.Proxy]]
STARTS: dict[str, Start] = {
    DIRECT: proxies.direct,
    NGINX: proxies.nginx,
    ROUTER: proxies.vllm_router,
    GATEWAY: lambda engine, directory, keys: gateway([engine], directory, keys),
}


def run(repetitions: range, chosen: Collection[str], keep: Callable[[Row], None], say: Callable[[str], None]) -> None:
    """Run the chosen scenarios; each row is handed to `keep` as soon as it is there."""
    usual = [scenario for scenario in USUAL if scenario.name in chosen]
    own = [scenario for scenario in OWN if scenario.name in chosen]
    for rep in repetitions:
        for name in ALL:
            wanted = [scenario for scenario in usual if name in scenario.through]
            for row in through(name, rep, wanted):
                _tell(row, say)
                keep(row)
        for one in own:
            try:
                for row in one.rows(rep):
                    _tell(row, say)
                    keep(row)
            except (OSError, RuntimeError, AssertionError) as error:
                row = Row(rep, GATEWAY, one.name, error=_words(error))
                _tell(row, say)
                keep(row)


def through(name: str, rep: int, wanted: list[Scenario]) -> Iterator[Row]:
    """All through one proxy, which is started for them; a row for each of them in any case."""
    left = list(wanted)
    began = time.monotonic()
    here, why = True, ""
    try:
        if left:
            with Engine() as engine, proxies.scratch() as directory:
                keys = write_keys(directory, USUAL_KEYS)
                with STARTS[name](engine.ports[0], directory, keys) as proxy:
                    warm(proxy, engine)
                    make_room(proxy, engine, max(scenario.streams for scenario in wanted))
                    while left:
                        row = Row(rep, name, left[0].name)
                        make_room(proxy, engine, left[0].streams)
                        left[0].run(proxy, engine, row)
                        left.pop(0)
                        yield row
    except proxies.NotHere as error:
        here, why = False, _words(error)
    except (OSError, RuntimeError, AssertionError) as error:
        why = f"after {time.monotonic() - began:.0f} s: {_words(error)}"
    for scenario in left:
        yield Row(rep, name, scenario.name, here=here, error=why)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


def _tell(row: Row, say: Callable[[str], None]) -> None:
    """A line of progress."""
    what = f"{row.scenario} {row.size}" if row.size else row.scenario
    if row.error:
        say(f"{row.rep} {row.proxy:12} {what:22} {'failed' if row.here else 'not here'}: {row.error}")
        return
    load, wrong = row.load, {**faults(row.load), **(faults(row.beside) if row.beside else {})}
    say(
        f"{row.rep} {row.proxy:12} {what:22} {load['wall_us'] / 1e6:5.1f} s, {load['requests']} requests, "
        f"{load['tokens']} tokens, {row.cpu:.2f} s CPU, {row.resident >> 20} MiB"
        + (f", WRONG: {wrong}" if wrong else "")
    )
