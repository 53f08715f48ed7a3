"""An installed machine after a reboot: units, users, files, answers, and what is closed. Nothing here breaks it."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from appliance import names
from tests.support.layers import KEY_FILE
from tests.support.machine import BASE, CHAT, PARIS, Appliance
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm

UNITS = (
    "llm-appliance.target",
    "llm-gateway.socket",
    "llm-gateway-admin.socket",
    "llm-gateway.service",
    "llm-supervisor.service",
    "llm-unitctl.socket",
    "llm-engine@default.service",
)
USERS = {
    "llm-gateway.service": "llm-gateway",
    "llm-supervisor.service": "llm-supervisor",
    "llm-engine@default.service": "llm-engine",
}
CONNECT = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{}\")'"


@pytest.mark.parametrize("unit", UNITS)
def test_unit_is_active(appliance: Appliance, unit: str) -> None:
    assert appliance.show(unit, "ActiveState")["ActiveState"] == "active"


def test_nothing_failed(appliance: Appliance) -> None:
    assert appliance.box.sh("systemctl --failed --plain --no-legend").out.strip() == ""


def test_status_of_the_gateway_unit(appliance: Appliance) -> None:
    def shown() -> str:
        return appliance.box.sh("systemctl status --no-pager llm-gateway").out

    assert "active (running)" in shown()
    wait_until(lambda: 'Status: "serving 1 model, ' in shown(), 15, "the status line says what is served")


@pytest.mark.parametrize(("unit", "user"), USERS.items())
def test_processes_run_as_their_own_user(appliance: Appliance, unit: str, user: str) -> None:
    group = appliance.show(unit, "ControlGroup")["ControlGroup"]
    # A helper may end between the listing and the look.
    look = f"for p in $(cat '/sys/fs/cgroup{group}/cgroup.procs'); do stat -c '%U %n' /proc/$p 2>/dev/null; done; true"
    owners = appliance.box.sh(look).out.splitlines()
    assert owners and [line for line in owners if line.split()[0] != user] == []


def test_an_engine_on_a_cpu_is_forked_from_its_standby(appliance: Appliance) -> None:
    """Nothing that the real vLLM imports is unfit for it; a worker of several cores may have been spawned."""
    assert names.STANDBY_PROCESS in appliance.processes("llm-engine@default.service")
    said = appliance.journal("-u llm-engine@default")
    assert "started without the standby" not in said and "EngineCore imports its modules itself" not in said


def test_users_cannot_log_in(appliance: Appliance) -> None:
    for user in ("llm-gateway", "llm-engine", "llm-supervisor", "llm-runtime"):
        assert appliance.box.sh(f"getent passwd {user}").out.strip().endswith(":/usr/sbin/nologin")


def test_keys_file_is_readable_by_the_gateway_alone(appliance: Appliance) -> None:
    assert appliance.box.sh("stat -c '%a %U:%G' /etc/llm-appliance/keys.toml").out.strip() == "640 root:llm-gateway"
    assert appliance.key not in appliance.box.read("/etc/llm-appliance/keys.toml")


def test_right_answer(appliance: Appliance) -> None:
    said = appliance.sdk("chat", PARIS)
    assert said["error"] is None
    assert "Paris" in said["text"]
    assert said["model"] == CHAT
    assert said["finish"] == "stop"


def test_right_answer_streamed(appliance: Appliance) -> None:
    said = appliance.sdk("stream", PARIS)
    assert said["error"] is None
    assert "Paris" in said["text"]
    assert said["finish"] == "stop"


def test_plain_curl_streams(appliance: Appliance) -> None:
    body = {"model": CHAT, "messages": [{"role": "user", "content": PARIS}], "temperature": 0, "stream": True}
    data = f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    status, out = appliance.curl("/v1/chat/completions", data)
    events = [line for line in out.splitlines() if line.startswith("data: ")]
    assert status == 200
    assert events[-1] == "data: [DONE]"
    text = "".join(json.loads(event[6:])["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert "Paris" in text


@pytest.fixture(scope="module")
def tour(appliance: Appliance) -> dict[str, Any]:
    """Many calls with both SDKs."""
    return appliance.sdk_tour()


@pytest.mark.parametrize("name", ["responses", "messages", "responses_stream", "messages_stream"])
def test_right_answer_in_every_api(tour: dict[str, Any], name: str) -> None:
    said = tour[name]
    text = said["text"] if name.endswith("stream") else said
    assert text == "The capital of France is Paris."
    assert not name.endswith("stream") or said["pieces"] > 3


def test_an_answer_of_a_given_form(tour: dict[str, Any]) -> None:
    assert tour["parsed"] == {"city": "Paris", "days": tour["parsed"]["days"]} and 0 <= tour["parsed"]["days"] <= 9


def test_completions_counts_and_tokens(tour: dict[str, Any]) -> None:
    assert tour["completion"].startswith(" Paris")
    assert tour["usage"] == {"tokens": tour["messages_stream"]["tokens"], "choices": []}
    assert tour["counted"] > tour["tokens"]["count"] == 4


def test_an_engine_s_refusal_reaches_either_sdk(tour: dict[str, Any]) -> None:
    for name in ("too_long", "too_long_message"):
        assert tour[name]["error"].startswith("BadRequestError") and "1000000" in tour[name]["error"]


def test_the_doctor_finds_nothing(appliance: Appliance) -> None:
    here = appliance.cli("doctor --json")
    verdicts = {one["name"]: one["verdict"] for one in json.loads(here.out)}
    found = {name: verdicts[name] for name in ("config", "gateway", "keys", "disk", "units", "models", "runtime")}
    assert found == dict.fromkeys(found, "ok")
    assert "fail" not in verdicts.values(), here.out
    through = appliance.cli(f"doctor --through {BASE}/v1 --key-file {KEY_FILE} --silence 12s --json", timeout=120)
    by_name = {one["name"]: one for one in json.loads(through.out[through.out.index("[") :])}
    assert {one["verdict"] for one in by_name.values()} <= {"ok", "warn"}
    assert "4 of 4" in by_name["comments"]["evidence"]  # one of them in the silence, after 10 s
    assert f"{CHAT}: first token after" in by_name["model"]["evidence"]
    assert appliance.key not in through.out


def test_models(appliance: Appliance) -> None:
    status, out = appliance.curl("/v1/models")
    assert status == 200
    assert [entry["id"] for entry in json.loads(out)["data"]] == [CHAT]


@pytest.mark.parametrize("key", ["", "sk-wrong"])
def test_no_key_no_answer(appliance: Appliance, key: str) -> None:
    status, out = appliance.curl("/v1/models", key=key)
    assert status == 401
    assert json.loads(out)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("route", ["/metrics", "/invocations", "/load", "/version", "/docs", "/scale_elastic_ep"])
def test_the_engine_s_other_routes_are_closed(appliance: Appliance, route: str) -> None:
    assert appliance.curl(route, "-X POST -d '{}'")[0] == 404


def test_liveness_needs_no_key(appliance: Appliance) -> None:
    assert appliance.curl("/healthz", key="")[0] == 200
    assert appliance.curl("/readyz", key="")[0] == 200


def test_nobody_may_open_a_socket(appliance: Appliance) -> None:
    sockets = ("engines/default/vllm.sock", "supervisor/control.sock", "gateway/control.sock", "unitctl.sock")
    for name in sockets:
        command = CONNECT.format(f"/run/llm-appliance/{name}")
        assert appliance.box.sh(command, check=False).status == 0, f"{name}: root cannot open it either"
        refused = appliance.box.sh(command, check=False, user="nobody")
        assert "PermissionError" in refused.out, name


@pytest.mark.parametrize("name", ["supervisor/control.sock", "gateway/control.sock", "unitctl.sock"])
def test_an_engine_may_not_open_the_others_sockets(appliance: Appliance, name: str) -> None:
    refused = appliance.box.sh(CONNECT.format(f"/run/llm-appliance/{name}"), check=False, user="llm-engine")
    assert "PermissionError" in refused.out


def test_an_engine_cannot_read_keys_or_write_models(appliance: Appliance) -> None:
    for command in ("cat /etc/llm-appliance/keys.toml", "touch /var/lib/llm-appliance/models/x"):
        assert appliance.box.sh(command, check=False, user="llm-engine").status != 0, command


def test_nothing_listens_to_the_network(appliance: Appliance) -> None:
    listening = [line.split()[3] for line in appliance.box.sh("ss -H -l -t -n").out.splitlines()]
    assert {"127.0.0.1:8080", "127.0.0.1:8081"} <= set(listening)
    assert [address for address in listening if not address.startswith(("127.", "[::1]"))] == []


def test_shared_memory_is_the_engine_s_own(appliance: Appliance) -> None:
    pid = appliance.processes("llm-engine@default.service")["VLLM::EngineCor"]
    mounts = appliance.box.read(f"/proc/{pid}/mountinfo")
    assert [line for line in mounts.splitlines() if line.split()[4] == "/dev/shm"]
    assert appliance.box.sh("ls /dev/shm").out.strip() == ""


def test_no_prompt_in_the_journal(appliance: Appliance) -> None:
    assert appliance.sdk("chat", "Say xylocarp twice.", tokens=8)["error"] is None
    assert "xylocarp" not in appliance.journal("")


def test_the_journal_reads_as_a_story(appliance: Appliance) -> None:
    """Our own words since the boot: each said once or a few times, each thing explained, nothing ugly."""
    entries = [json.loads(line) for line in appliance.journal("-o json -u 'llm-*'").splitlines()]
    ours = [entry for entry in entries if entry["SYSLOG_IDENTIFIER"] != "vllm"]
    assert {entry["_SYSTEMD_UNIT"] for entry in entries if entry not in ours} == {"llm-engine@default.service"}
    said = Counter((entry["SYSLOG_IDENTIFIER"], str(entry["MESSAGE"])) for entry in ours)
    assert {line: count for line, count in said.items() if count > 3} == {}
    ugly = ("Traceback", "Error", "given up", "denied", "not permitted", "never awaited")
    assert [line for line in said if any(word in line[1] for word in ugly)] == []
    assert {entry["PRIORITY"] for entry in ours if int(entry["PRIORITY"]) <= 3} == set()
    assert "Subject: Engine default serves" in appliance.journal("-x -u 'llm-*'")


def test_status_of_the_appliance(appliance: Appliance) -> None:
    assert appliance.cli("status").status == 0
    assert "default" in appliance.cli("status").out
    assert appliance.cli("check").status == 0
    assert appliance.key not in appliance.cli("keys list --json").out


def test_the_engine_stops_working_when_the_client_leaves(appliance: Appliance) -> None:
    def running() -> float:
        socket = "--unix-socket /run/llm-appliance/engines/default/vllm.sock"
        out = appliance.box.sh(f"curl -s {socket} http://engine/metrics").out
        lines = [line for line in out.splitlines() if line.startswith("vllm:num_requests_running")]
        return math.fsum(float(line.rpartition(" ")[2]) for line in lines)

    with appliance.streaming():
        assert running() == 1
    wait_until(lambda: running() == 0, 5, "nothing runs in the engine", pause=0.1)  # to its end would be 1,500 tokens
