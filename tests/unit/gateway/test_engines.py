from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance.config.fleet import lora_names, served_names
from appliance.config.model import Config, Engine
from appliance.errors import ApiError
from appliance.gateway.clients import is_trusted
from appliance.gateway.engines import Engines, Group, StateFile
from appliance.gateway.listeners import parse_address
from appliance.gateway.upstream import Target, remote_target
from appliance.host.files import replace_json
from appliance.host.ports import port_owner
from appliance.policy.admission import Admission, Lease, Outcome, Ticket


def test_a_state_file_is_read_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = StateFile(str(path))
    assert not state.refresh() and state.text("phase") == "" and state.number("since") is None
    replace_json(path, {"phase": "loading", "since": 3, "ready": True})
    assert state.refresh() and state.text("phase") == "loading" and state.number("since") == 3.0
    assert state.number("ready") is None and not state.refresh()
    path.write_text("{torn")
    assert state.refresh() and state.text("phase") == ""
    path.unlink()
    assert state.refresh() and not state.refresh()


@pytest.mark.parametrize(
    ("told", "context"),
    [({}, 8192), ({"a": {"max_model_len": 4096}}, 4096),
     ({"a": {"max_model_len": 8192}, "b": {"max_model_len": 5888}}, 5888),
     ({"a": {}, "b": {"max_model_len": "auto"}}, 8192)],
)  # fmt: skip
def test_the_context_is_the_shortest_that_a_replica_was_started_with(
    tmp_path: Path, told: dict[str, dict[str, object]], context: int
) -> None:
    loop = asyncio.new_event_loop()
    engines = Engines(str(tmp_path), loop)
    for name, instance in (("a", "chat"), ("b", "chat-2")):
        (tmp_path / f"engines/{instance}").mkdir(parents=True)
        replace_json(tmp_path / f"engines/{instance}/state.json", {"start": "s", "flags": told.get(name)})
    engine = Engine(name="chat", replicas=2, vllm={"max_model_len": 8192})
    engines.configure(Config(engines=(engine,)))
    assert engines.groups["chat"].context == context
    engines.close()
    loop.close()


@pytest.mark.parametrize(
    ("modules", "names"),
    [(None, ()), ("a=/x", ("a",)), (["a=/x", "b=/y"], ("a", "b")), ([{"name": "a", "path": "/x"}], ("a",)),
     ({"a": "/x", "b": "/y"}, ("a", "b")), ({"name": "a", "path": "/x"}, ("a",)), (3, ()), (["nonsense"], ()),
     (['{"name": "a", "path": "/x"}', '{"name"', "{}"], ("a",))],
)  # fmt: skip
def test_adapters_are_served_names(modules: object, names: tuple[str, ...]) -> None:
    engine = Engine(model="org/m", vllm={"lora_modules": modules})
    assert lora_names(engine) == names
    assert served_names(engine) == ("m", *names)


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [("http://10.0.0.5:9000", Target("", "10.0.0.5", 9000), "10.0.0.5:9000"),
     ("https://engine.example/base/", Target("", "engine.example", 443, True, "/base"), "engine.example"),
     ("http://[fd00::1]:9000", Target("", "fd00::1", 9000), "[fd00::1]:9000")],
)  # fmt: skip
def test_remote_urls(url: str, target: Target, authority: str) -> None:
    assert remote_target(url, "") == target and target.authority == authority


@pytest.mark.parametrize(
    ("address", "trusted", "expected"),
    [("127.0.0.1", ("127.0.0.1",), True), ("10.2.3.4", ("10.0.0.0/8",), True), ("11.2.3.4", ("10.0.0.0/8",), False),
     ("unix", ("10.0.0.0/8",), False), ("::1", ("10.0.0.0/8", "::1/128"), True), ("10.0.0.1", ("nonsense",), False)],
)  # fmt: skip
def test_trust(address: str, trusted: tuple[str, ...], expected: bool) -> None:
    assert is_trusted(address, trusted) is expected


def test_addresses_and_owners(tmp_path: Path) -> None:
    assert parse_address("127.0.0.1:80") == ("127.0.0.1", 80) and parse_address("[::]:80") == ("::", 80)
    (tmp_path / "net").mkdir()
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "comm").write_text("nginx\n")
    (tmp_path / "7" / "fd" / "5").symlink_to("socket:[4242]")
    row = "   0: 0100007F:1F90 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 4242 1\n"
    for state, owner in (("01", ""), ("0A", "nginx (pid 7)")):
        (tmp_path / "net" / "tcp").write_text("  sl  local_address\n" + row.format(state))
        assert port_owner(8080, str(tmp_path)) == owner
    assert port_owner(8081, str(tmp_path)) == ""


def test_a_remote_engine_that_is_late_once_is_busy_and_twice_in_a_row_away(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    engines = Engines(str(tmp_path), loop)
    engines.configure(Config(engines=(Engine(name="chat", remote=("http://127.0.0.1:9",)),)))
    (replica,) = engines.replicas()
    for _ in range(2):
        replica.failed(5.0, late=True)
        assert replica.up and engines.serving(replica, 5.0)
        replica.worked()
    for _ in range(2):
        replica.failed(5.0, late=True)
    assert not replica.up and not engines.serving(replica, 5.0)
    replica.worked()
    assert engines.serving(replica, 5.0)
    replica.failed(5.0)
    assert not engines.serving(replica, 5.0), "it refused the connect: nobody is there"
    engines.close()
    loop.close()


class Brief:
    """A call that waits, and ends as soon as it is let in."""

    def __init__(self, group: Group, ended: list[int]) -> None:
        self.group, self.ended = group, ended

    def admitted(self, lease: Lease) -> None:
        self.ended.append(lease.ticket.number)
        self.group.release(lease, Outcome.OK)

    def refused(self, error: ApiError) -> None:
        raise AssertionError(error)


def test_calls_that_end_at_once_let_the_next_ones_in_without_a_deep_stack() -> None:
    group = Group(Engine(model="m"), Admission(queue_size=3000, queue_timeout=9.0))
    group.admission.set_replica("m", limit=1, serving=True)
    ended: list[int] = []
    first = group.admission.offer(Ticket(0, "k", 0.0), 0.0)
    assert isinstance(first, Lease)
    for number in range(1, 3000):
        group.admission.offer(Ticket(number, "k", 0.0), 0.0)
        if number % 10:  # every tenth has left in the moment in which it is let in
            group.waiters[number] = Brief(group, ended)
    group.release(first, Outcome.OK)
    assert ended == [number for number in range(1, 3000) if number % 10]
    assert not group.waiters and group.admission.in_flight() == group.admission.waiting == 0
    group.admission.check()
