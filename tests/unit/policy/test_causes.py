from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.host.journal import message_id
from appliance.policy.causes import CAUSES, ENVELOPES
from appliance.policy.events import EVENTS, catalog

ROOT = Path(__file__).resolve().parents[3]
WORDS = {
    "idle starting compiling busy-prefill slow asleep draining",
    "hang-collective hang-rank-absent hang-scheduler hang-livelock hang-kernel hang-init hang-startup",
    "cuda-oom-serving cuda-oom-warmup cuda-oom-load kv-none kv-too-small",
    "gpu-memory-leaked gpu-memory-taken start-contention",
    "host-oom-cgroup host-oom-global host-oom-oomd shm-full shm-removed",
    "engine-died worker-died engine-exception cuda-fault poison-request start-timeout start-failed",
    "gpu-lost gpu-ecc gpu-hardware-suspect nvlink-fault driver-unresponsive driver-mismatch unclean-reset",
    "config-error model-not-found model-unreadable hub-denied disk-full toolchain-missing",
    "unknown",
}


def test_the_causes_are_the_contracts() -> None:
    assert set(CAUSES) == {word for line in WORDS for word in line.split()}
    assert set(CAUSES) >= ENVELOPES


@pytest.mark.parametrize("word", CAUSES)
def test_every_cause_says_what_it_means_and_what_to_do(word: str) -> None:
    cause = CAUSES[word]
    assert cause.meaning.endswith(".") and cause.advice.endswith(".")


def test_ids_are_apart() -> None:
    words = [*CAUSES, *EVENTS]
    assert len({message_id(word) for word in words}) == len(words)


def test_the_catalogue_is_made_of_the_rows() -> None:
    """To write it anew: `catalog(message_id)` into systemd/llm-appliance.catalog."""
    assert (ROOT / "systemd/llm-appliance.catalog").read_text() == catalog(message_id)


def test_the_catalogue_is_in_systemds_format() -> None:
    entries = catalog(message_id).split("-- ")[1:]
    assert len(entries) == len(CAUSES) + len(EVENTS)
    for entry in entries:
        head, _, body = entry.partition("\n\n")
        assert re.fullmatch(r"[0-9a-f]{32}\nSubject: .+\nDefined-By: llm-appliance", head)
        assert body.strip()


def test_every_event_and_cause_that_the_code_uses_has_an_entry() -> None:
    """Words in quotes after `message_id(`, in `LLM_EVENT=` or in a table of the supervisor."""
    used = set()
    for path in (ROOT / "appliance").rglob("*.py"):
        used |= set(re.findall(r'message_id\("([a-z-]+)"\)', path.read_text()))
    assert used
    assert used <= {*CAUSES, *EVENTS}
