from __future__ import annotations

import gc
import weakref

import pytest

from appliance.errors import API_CODES, ApiError, ConfigInvalid, Failed, Problem, Unreachable, UsageError


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("gateway.listn", "unknown key", "did you mean listen?", "/etc/c.toml", 3),
         "/etc/c.toml:3: gateway.listn: unknown key (did you mean listen?)"),
        (Problem("engine", "two are named chat"), "engine: two are named chat"),
        (Problem("", "not TOML", file="c.toml", line=1), "c.toml:1: not TOML"),
        (Problem("a", "b", file="c.toml"), "c.toml: a: b"),
    ],
)  # fmt: skip
def test_a_problem_names_its_place(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_exit_statuses_are_the_contracts() -> None:
    errors = (Failed("x"), UsageError("x"), ConfigInvalid([Problem("a", "b")]), Unreachable("x"))
    assert [error.exit_status for error in errors] == [1, 2, 2, 3]


def test_an_invalid_configuration_counts_errors_only() -> None:
    error = ConfigInvalid([Problem("a", "odd", severity="warning"), Problem("b", "bad"), Problem("c", "worse")])
    assert error.message == "the configuration has 2 errors: b: bad"
    assert len(error.problems) == 3


@pytest.mark.parametrize("code", API_CODES)
def test_every_code_has_a_status_and_a_type(code: str) -> None:
    error = ApiError(code, "why")
    assert 400 <= error.status < 600
    assert error.type
    assert (error.code, error.message, error.retry_after) == (code, "why", None)


def test_a_settled_error_keeps_nothing_of_what_it_came_through() -> None:
    class Body(bytearray):
        pass

    bodies: list[weakref.ref[Body]] = []

    def refuse() -> None:
        body = Body(b"secret")
        bodies.append(weakref.ref(body))
        try:
            int(body)
        except ValueError:
            raise ApiError("invalid_json", "why") from None

    gc.disable()  # what only a collection would free is kept
    try:
        with pytest.raises(ApiError) as caught:
            refuse()
        error = caught.value
        del caught
        assert bodies[0]() is not None
        error.settled()
        assert bodies[0]() is None and error.message == "why"
    finally:
        gc.enable()
