from __future__ import annotations

import pytest

from appliance.policy.availability import LONGEST_WAIT, RuntimeSeen, Seen, serves, unavailable

NOW = 1000.0
NO_RUNTIME = RuntimeSeen()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen(replica="a"), False),
        (Seen(replica="a", phase="serving"), True),
        (Seen(replica="a", phase="serving", state="held"), False),
        (Seen(replica="a", phase="warming", state="serving"), False),
        (Seen(replica="a", remote=True), True),
        (Seen(replica="a", remote=True, reachable=False), False),
    ],
)
def test_who_serves(seen: Seen, expected: bool) -> None:
    assert serves(seen) is expected


@pytest.mark.parametrize(
    ("seens", "runtime", "code", "words", "wait"),
    [
        ([Seen(replica="a")], NO_RUNTIME, "engine_starting", "has not been started", 10),
        ([], NO_RUNTIME, "engine_starting", "has not been started", 10),
        ([Seen(replica="a")], RuntimeSeen("downloading", "torch", 41.4), "engine_starting", "torch (41 %)", 30),
        ([Seen(replica="a")], RuntimeSeen("failed", "no space left"), "engine_starting", "no space left", 30),
        ([Seen(replica="a")], RuntimeSeen("complete"), "engine_starting", "has not been started", 10),
        ([Seen(replica="a", state="waiting", reason="its turn")], NO_RUNTIME, "engine_starting", "its turn", 10),
        ([Seen(replica="a", phase="loading", message="2 of 5", since=NOW - 94)], NO_RUNTIME, "engine_starting",
         "2 of 5, for 94s", 10),
        ([Seen(replica="a", phase="loading", load_s=60, started=NOW - 20)], NO_RUNTIME, "engine_starting",
         "weights", 40),
        ([Seen(replica="a", phase="loading", load_s=60, started=NOW - 90)], NO_RUNTIME, "engine_starting",
         "weights", 2),
        ([Seen(replica="a", phase="loading", load_s=900, started=NOW)], NO_RUNTIME, "engine_starting", "weights",
         LONGEST_WAIT),
        ([Seen(replica="a", phase="exited", load_s=25)], NO_RUNTIME, "engine_restarting", "has stopped", 25),
        ([Seen(replica="a", phase="exited", load_s=25, not_before=NOW + 10)], NO_RUNTIME, "engine_restarting", "", 35),
        ([Seen(replica="a", phase="serving")], NO_RUNTIME, "engine_restarting", "restarts", 10),
        ([Seen(replica="a", state="restarting", reason="GPU lost")], NO_RUNTIME, "engine_restarting", "GPU lost", 10),
        ([Seen(replica="a", remote=True, reachable=False)], NO_RUNTIME, "engine_restarting", "does not answer", 10),
        ([Seen(replica="a", state="held", reason="by you")], NO_RUNTIME, "engine_held", "by you", 300),
        ([Seen(replica="a", state="held"), Seen(replica="b", phase="loading", load_s=5, started=NOW)], NO_RUNTIME,
         "engine_starting", "weights", 5),
    ],
)  # fmt: skip
def test_what_is_told(seens: list[Seen], runtime: RuntimeSeen, code: str, words: str, wait: float) -> None:
    told = unavailable("m", seens, runtime, NOW)
    assert (told.code, told.retry_after) == (code, wait)
    assert words in told.message and "m" in told.message
