"""Edits of the file: what changes, what stays, what is refused; and a boot with a broken file."""

from __future__ import annotations

import json
import math

import pytest

from tests.support.layers import BOTH
from tests.support.machine import CHAT, EMBED, PARIS, Appliance
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm
FILE = "/etc/llm-appliance/config.toml"
CHANGED = """
[[engine]]
name = "default"
model = "builtin:smollm2-135m"
served_names = ["parrot"]
[engine.vllm]
max_num_seqs = 7
enable_auto_tool_choice = true
tool_call_parser = "hermes"
[[engine]]
name = "embed"
model = "builtin:minilm-l6-v2"
"""
APPLY = 300.0


@pytest.fixture(scope="module")
def two(appliance: Appliance) -> Appliance:
    """Two engines from one edit: a chat model and an embedding model; the chat engine goes on meanwhile."""
    before = appliance.wait_serving("default")
    appliance.box.write(FILE, BOTH)
    appliance.cli("apply", timeout=APPLY)
    appliance.wait_serving("embed")
    assert appliance.engine("default")["start"] == before["start"]
    return appliance


def test_two_engines_behind_one_endpoint(two: Appliance) -> None:
    said = two.sdk("embed", "The cat sleeps.|A kitten is napping.|Interest rates rose.", model=EMBED)
    assert said["error"] is None
    near, far = _cosine(*said["vectors"][:2]), _cosine(said["vectors"][0], said["vectors"][2])
    assert len(said["vectors"][0]) == 384
    assert near > 0.5 > 0.3 > far
    assert "Paris" in two.sdk("chat", PARIS)["text"]
    assert {entry["id"] for entry in json.loads(two.curl("/v1/models")[1])["data"]} == {CHAT, EMBED}


def _cosine(left: list[float], right: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True)) / (math.hypot(*left) * math.hypot(*right))


def test_a_broken_edit_changes_nothing_and_is_explained(two: Appliance) -> None:
    starts = _starts(two)
    two.box.write(FILE, BOTH.replace("[[engine]]", "[gateway]\nlissen = []\n[[engine]]", 1))
    refused = two.cli("apply", check=False)
    assert refused.status == 2
    assert FILE in refused.out
    assert "lissen" in refused.out
    assert "listen" in refused.out
    assert two.cli("check", check=False).status == 2
    assert _starts(two) == starts
    assert "Paris" in two.sdk("chat", PARIS)["text"]


def test_an_edit_restarts_the_changed_engine_alone(two: Appliance) -> None:
    starts = _starts(two)
    two.box.write(FILE, CHANGED)
    planned = two.cli("apply --dry-run").out
    assert "max_num_seqs" in planned
    assert _starts(two) == starts
    two.cli("apply", timeout=APPLY)
    wait_until(lambda: two.engine("default").get("start") != starts["default"], 90, "the chat engine starts anew")
    two.wait_serving("default")
    assert two.engine("embed")["start"] == starts["embed"]
    assert "Paris" in two.wait_answer(60, model="parrot")["text"]
    assert two.sdk("chat", PARIS, model=CHAT)["status"] == 404
    pid = two.engine("default")["pid"]
    arguments = two.box.read(f"/proc/{pid}/cmdline").replace("\0", " ").split()  # forked, so it is a title
    assert arguments[arguments.index("--max-num-seqs") + 1] == "7"


def test_an_edit_that_an_engine_does_not_start_with_is_rolled_back(two: Appliance) -> None:
    """The file stays, the last good configuration serves; the other engine notices nothing."""
    two.wait_serving("default")
    starts = _starts(two)
    bad = CHANGED.replace("max_num_seqs = 7", "max_num_seqs = 7\nmax_model_len = 1000000", 1)
    two.box.write(FILE, bad)
    refused = two.cli("apply", check=False, timeout=APPLY)
    assert refused.status == 1
    assert "rolling back to the last good configuration" in refused.out
    assert "max_model_len" in refused.out
    two.wait_serving("default")
    assert "Paris" in two.wait_answer(60, model="parrot")["text"]
    assert two.engine("embed")["start"] == starts["embed"]
    assert two.box.read(FILE) == bad
    assert "was rolled back: default: config-error" in two.cli("check").out
    two.box.write(FILE, CHANGED)
    assert two.cli("apply", timeout=APPLY).status == 0


def test_a_tool_must_be_called(two: Appliance) -> None:
    """The engine has the flags for it now; what the smallest model says to the tool is its own affair."""
    said = two.sdk_tour("tools", model="parrot")
    assert said["called"][0] == said["streamed"][0] == "book"
    assert said["streamed"][1] == said["called"][1] and said["streamed"][2] > 1


def test_a_live_setting_restarts_no_engine(two: Appliance) -> None:
    starts = _starts(two)
    two.box.write(FILE, CHANGED + "\n[gateway.admission]\nqueue_size = 9\n")
    two.cli("apply", timeout=60)
    assert _starts(two) == starts
    assert "Paris" in two.wait_answer(30, model="parrot")["text"]


def test_a_changed_address_is_listened_on_without_a_complaint(two: Appliance) -> None:
    """systemd refuses to let a socket listen while its service runs; either address is answered afterwards."""
    two.box.write(FILE, CHANGED + '\n[gateway]\nlisten = ["127.0.0.1:8080", "127.0.0.1:8090"]\n')
    applied = two.cli("apply", timeout=APPLY)
    assert "did not take it over" not in applied.out
    assert "8090" in two.journal("-u llm-gateway")
    assert "Failed to listen" not in two.journal("-u llm-gateway.socket")


def test_a_boot_with_a_broken_file_serves_what_served_before(two: Appliance) -> None:
    """Also: engines on one machine start one after the other."""
    two.box.write(FILE, "[[engine]\nmodel = ")
    two.box.reboot()
    two.wait_ready()
    first, second = two.wait_serving("default"), two.wait_serving("embed")
    assert "Paris" in two.wait_answer(60, model="parrot")["text"]
    early, late = sorted((first, second), key=lambda state: state["started"])
    assert late["started"] >= early["ready"]
    assert two.show("llm-config-check.service", "Result")["Result"] != "success"
    assert FILE in two.journal("-u llm-config-check")


def _starts(appliance: Appliance) -> dict[str, str]:
    return {name: appliance.engine(name)["start"] for name in ("default", "embed")}
