from __future__ import annotations

import pytest

from appliance import names
from appliance.host.places import Places, from_environment


def test_the_packaged_places_are_those_of_names() -> None:
    where = from_environment({})
    assert where.under_run(names.SUPERVISOR_SOCKET) == names.SUPERVISOR_SOCKET
    assert where.under_state(names.HOLDS) == names.HOLDS


@pytest.mark.parametrize(
    ("path", "moved"),
    [
        ("/run/llm-appliance", "/a"),
        ("/run/llm-appliance/engines/x", "/a/engines/x"),
        ("/run/llm-appliance-other/x", "/run/llm-appliance-other/x"),
        ("/data/models", "/data/models"),
    ],
)
def test_moved(path: str, moved: str) -> None:
    assert from_environment({"LLM_APPLIANCE_RUN": "/a"}).under_run(path) == moved


def test_state_moves_apart() -> None:
    assert Places("/a", "/b").under_state(names.MODELS) == "/b/models"
