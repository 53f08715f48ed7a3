"""What a reader of a ladder's figures is told beside them."""

from __future__ import annotations

import pytest

from appliance.cli.benchpage import remarks
from appliance.policy.loadfigures import Request, Step, Target, figures

WHOLE = Request(ttft=0.1, e2el=0.5, gaps=[0.1] * 4, output_tokens=5)


def step(*requests: Request, late: float = 0.0) -> Step:
    return figures(requests, 8, 1.0, Target(), late=late)


@pytest.mark.parametrize(
    ("made", "tokens", "said"),
    [
        (step(WHOLE), 5, None),
        (step(WHOLE, late=0.0045), 5, None),
        (step(WHOLE, late=0.02), 5, "8 at once this program saw events up to 20.0ms late"),
        (step(WHOLE), 9, "answers had 5 tokens on average, not 9"),
        (step(WHOLE, Request(failure="broken off")), 5, "1 of 2 requests failed: 1 broken off"),
        (step(WHOLE, Request(failure="429 queue_full")), 5, "measure the limit and not the engine"),
        (step(Request(ttft=0.1, e2el=0.1, output_tokens=5, estimated=True)), 5, "counted by events"),
    ],
)
def test_what_a_reader_must_know(made: Step, tokens: int, said: str | None) -> None:
    found = " ".join(remarks([made], tokens))
    assert found == "" if said is None else said in found
