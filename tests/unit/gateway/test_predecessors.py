"""The seam between two processes, both ends in one loop: calls that end anyhow and lines that break leave nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance import clock
from appliance.config.model import Admission, Auth, Config, Engine, Gateway, KeyLimits
from appliance.errors import ApiError
from appliance.gateway.allowances import Allowances
from appliance.gateway.auth import Gatekeeper, Principal
from appliance.gateway.engines import Engines
from appliance.gateway.listeners import unix_socket
from appliance.gateway.predecessors import Predecessors
from appliance.gateway.record import Record, record_of
from appliance.gateway.successor import SPOOL, Successor, left_behind
from appliance.host import keystore
from appliance.host.journal import Journal
from appliance.policy.admission import Lease, Outcome, Refuse, Ticket
from appliance.policy.allowance import Demand

LIMIT = 5
CONFIG = Config(
    gateway=Gateway(admission=Admission(max_in_flight=LIMIT, queue_size=40, queue_timeout=60.0)),
    engines=tuple(Engine(name=name, model=f"org/{name}", remote=("http://127.0.0.1:9",)) for name in ("a", "b")),
)
CALLS = 400


class Side:
    """One process's counters."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.engines = Engines(str(directory), asyncio.get_running_loop())
        self.engines.configure(CONFIG)
        for replica in self.engines.replicas():
            replica.reachable = True
        self.engines.refresh(clock.monotonic(), clock.wall())
        self.allowances = Allowances(str(directory / "use.json"), print)
        self.records: list[str] = []
        self.predecessors = Predecessors(
            self.engines, self.allowances, Gatekeeper(print), lambda record: self.records.append(record.request_id),
            Journal("test", path=str(directory / "none")),
        )  # fmt: skip

    async def listen(self, path: Path) -> None:
        listener = unix_socket(str(path), 0o177)
        assert listener is not None
        await self.predecessors.open(listener)

    def still(self) -> bool:
        for group in self.engines.groups.values():
            group.admission.check()
        groups = self.engines.groups.values()
        counted = [sum(group.admission.in_flight() + group.admission.waiting for group in groups)]
        return [*counted, self.allowances.running, self.allowances.reserved] == [0, 0, 0]


def view() -> dict[str, object]:
    return {"replicas": {}, "events": {}}


def record(name: str) -> Record:
    return record_of({"request_id": name})


async def until(condition: Callable[[], bool], pause: float = 0.005) -> None:
    async def wait() -> None:
        while not await asyncio.sleep(pause, condition()):
            pass

    await asyncio.wait_for(wait(), 30)


class Waiting:
    """A call in a queue, for a task that waits."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self.lease: Lease | None = None

    def admitted(self, lease: Lease) -> None:
        self.lease = lease
        if not self.future.done():
            self.future.set_result(lease)

    def refused(self, error: ApiError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def call(side: Side, line: Successor | None, number: int, chance: random.Random, most: list[int]) -> None:
    """One call as an exchange makes it: allowance, admission, some time, an end."""
    group = side.engines.groups[chance.choice("ab")]
    who = Principal(f"k-{number % 3}", "")
    wanted = Demand(100, 10, chance.randrange(100))
    hold = None if line is None else await line.take(who.key_id, wanted)
    hold = hold or side.allowances.reserve(who, wanted)
    ticket = Ticket(number, who.key_id, clock.monotonic(), hold.tokens)
    lease: Lease | None = None
    try:
        found = group.admission.offer(ticket, clock.monotonic())
        if isinstance(found, Refuse):
            return
        if isinstance(found, Lease):
            lease = found
        else:
            if found.displaced is not None:
                group.turn_away(*found.displaced)
            waiter = group.waiters[number] = Waiting()
            try:
                lease = await waiter.future
            except BaseException:
                if waiter.lease is not None:
                    group.release(waiter.lease, Outcome.IGNORED)
                raise
            finally:
                group.waiters.pop(number, None)
                group.admission.leave(ticket)
        most.append(sum(g.admission.in_flight() for g in side.engines.groups.values()))
        await asyncio.sleep(chance.random() * 0.01)
    except ApiError:
        return
    finally:
        if lease is not None:
            group.release(lease, chance.choice(list(Outcome)))
        side.allowances.give_back(hold, who, chance.choice([None, 0, 50]))
        group.admission.correct(ticket, 50)
        if line is not None:
            line.finished(record(f"r{number}"))


async def crowd(older: Side, line: Successor | None, numbers: range, chance: random.Random, disturb: Callable[[], None],
                most: list[int]) -> None:  # fmt: skip
    tasks = [asyncio.ensure_future(call(older, line, number, chance, most)) for number in numbers]
    while not all(task.done() for task in tasks):
        for task in chance.sample(tasks, 5):
            task.cancel()
        disturb()
        await asyncio.sleep(0.003)
    for task in tasks:
        assert task.cancelled() or task.exception() is None or isinstance(task.exception(), ApiError), task.exception()


@pytest.mark.parametrize("seed", range(4))
def test_calls_that_end_anyhow_leave_nothing(tmp_path: Path, seed: int) -> None:
    """Even seeds: the line breaks again and again; odd ones: the new process is lost and another takes its place."""
    chance = random.Random(seed)

    async def play() -> None:
        path, older, newer = tmp_path / "sock", Side(tmp_path / "older"), Side(tmp_path / "newer")
        most: list[int] = []
        before = [asyncio.ensure_future(call(older, None, number, chance, most)) for number in range(30)]
        await asyncio.sleep(0)  # they hold places and wait for them
        assert older.engines.groups["a"].admission.waiting
        accounts = json.loads(json.dumps(older.allowances.state()))
        line = Successor(str(path), older.engines, older.allowances, view=view, stop=lambda: None)
        newer.allowances.restore(accounts)
        await newer.listen(path)
        run = asyncio.ensure_future(line.run())
        sides = [newer]

        def disturb() -> None:
            if chance.random() < 0.05:
                for one in list(sides[-1].predecessors.connected):
                    one.detach()
                    for group in sides[-1].engines.groups.values():
                        group.admit_waiting(clock.monotonic())

        await crowd(older, line, range(100, 100 + CALLS), chance, disturb, most)
        if seed % 2:
            sides[-1].predecessors.close()
            sides.append(Side(tmp_path / "next"))
            await sides[-1].listen(path)
        await crowd(older, line, range(1000, 1000 + CALLS), chance, disturb, most)
        await asyncio.gather(*before, return_exceptions=True)
        await until(line.all_told)
        await until(lambda: older.still() and sides[-1].still())
        told = [name for side in sides for name in side.records]
        assert len(told) == len(set(told)) > CALLS, "every record once"
        assert max(most) <= 2 * LIMIT * 3, "leases of one process stay near the limits while lines break"
        run.cancel()
        sides[-1].predecessors.close()

    asyncio.run(play())


def test_without_a_successor_after_all_the_calls_go_on_here(tmp_path: Path) -> None:
    chance = random.Random(1)

    async def play() -> None:
        older = Side(tmp_path / "older")
        most: list[int] = []
        tasks = [asyncio.ensure_future(call(older, None, number, chance, most)) for number in range(30)]
        await asyncio.sleep(0)
        line = Successor(str(tmp_path / "none"), older.engines, older.allowances, view=view, stop=lambda: None)
        tasks.append(asyncio.ensure_future(call(older, line, 99, chance, most)))
        line.finished(record("r"))
        await asyncio.sleep(0.01)
        assert [one.request_id for one in line.give_up()] == ["r"]
        older.engines.refresh(clock.monotonic(), clock.wall())
        await asyncio.gather(*tasks)
        assert older.still()
        assert older.engines.groups["a"].admission.queue_size == 40

    asyncio.run(play())


@pytest.mark.parametrize("turns", range(12))
def test_a_client_that_leaves_while_it_is_granted_holds_nothing(tmp_path: Path, turns: int) -> None:
    """In each turn of the loop between the grant over there and its arrival at the call."""

    async def play() -> None:
        older, later = Side(tmp_path / "older"), Side(tmp_path / "later")
        await later.listen(tmp_path / "s")
        line = Successor(str(tmp_path / "s"), older.engines, older.allowances, view=view, stop=lambda: None)
        running = asyncio.ensure_future(line.run())
        await until(lambda: line.connected)
        asked = asyncio.ensure_future(line.take("k", Demand(1, 1, 10)))
        await until(lambda: later.allowances.running == 1, 0)
        for _ in range(turns):
            await asyncio.sleep(0)
        had_it = asked.done()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert asked.cancelled() is not had_it
        if had_it and (hold := asked.result()) is not None:
            older.allowances.give_back(hold, Principal("k", ""), None)
        await until(lambda: older.still() and later.still() and line.all_told())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        later.predecessors.close()

    asyncio.run(play())


def test_several_answers_are_capped_together_there_too(tmp_path: Path) -> None:
    async def play() -> None:
        older, newer = Side(tmp_path / "older"), Side(tmp_path / "newer")
        keys = str(tmp_path / "keys.toml")
        key, _ = keystore.create(keys, "alice", clock.wall(), limits=KeyLimits(max_tokens=100))
        newer.predecessors.gatekeeper.configure(Auth(keys_file=keys))
        await newer.listen(tmp_path / "sock")
        line = Successor(str(tmp_path / "sock"), older.engines, older.allowances, view=view, stop=lambda: None)
        running = asyncio.ensure_future(line.run())
        with pytest.raises(ApiError, match="100 at most"):
            await line.take(key.id, Demand(100, 10, 160, limit=80, answers=2))
        assert newer.still()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        newer.predecessors.close()

    asyncio.run(play())


def test_what_nobody_heard_is_left_for_the_next(tmp_path: Path) -> None:
    async def play() -> None:
        older, later = Side(tmp_path / "older"), Side(tmp_path / "later")
        hold = older.allowances.reserve(Principal("k", ""), Demand(1, 1, 10))
        line = Successor(str(tmp_path / "none"), older.engines, older.allowances, view=view, stop=lambda: None)
        line.finished(record("r"))
        older.allowances.give_back(hold, Principal("k", ""), 7)
        assert line.leave_behind(str(tmp_path)) == 2
        (tmp_path / f"{SPOOL}1").write_bytes(b"{torn")
        for fact in left_behind(str(tmp_path)):
            later.predecessors.late(fact)
        assert later.records == ["r"] and left_behind(str(tmp_path)) == []
        assert later.allowances.snapshot()[1]["keys"]["k"]["day"][1] == 7  # type: ignore[index]

    asyncio.run(play())


def test_another_version_may_say_less_or_more(tmp_path: Path) -> None:
    """What an upgrade brings together: fields and words that one of both does not know."""

    async def play() -> None:
        newer = Side(tmp_path / "newer")
        await newer.listen(tmp_path / "sock")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "sock"))
        hello = {"op": "hello", "pid": 7, "holds": [], "calls": [], "later": 1}
        facts = {"op": "fact", "seq": 1, "record": {"request_id": "r", "later": 1}}
        for message in (hello, {"op": "pulse"}, {"op": "pulse", "events": 5}, {"op": "later"}, facts):
            writer.write(json.dumps(message).encode() + b"\n")
        assert json.loads(await asyncio.wait_for(reader.readline(), 10)) == {"op": "ack", "seq": 1}
        assert newer.predecessors.status() == [{"pid": 7, "running": 0}] and newer.records == ["r"]
        assert newer.predecessors.events() == {}
        writer.write(b'{"op": "pulse", "events": {"chat": 5}}\n')
        await until(lambda: newer.predecessors.events() == {"chat": 5})
        writer.close()
        await until(lambda: not newer.predecessors.connected)
        newer.predecessors.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[]\n", b'{"op":"hello"}\n', b'{"op":"fact","seq":"x"}\n', b'{"op":"release"}\n']
)
def test_a_process_that_speaks_in_tongues_is_let_go(tmp_path: Path, line: bytes) -> None:
    async def play() -> None:
        newer = Side(tmp_path / "newer")
        await newer.listen(tmp_path / "sock")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "sock"))
        writer.write(b'{"op":"later-words"}\n' + line)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert not newer.predecessors.connected and newer.still()
        writer.close()
        newer.predecessors.close()

    asyncio.run(play())
