from __future__ import annotations

from appliance.gateway.faults import loop_handler, place


def fault() -> ValueError:
    try:
        raise ValueError("SECRET")
    except ValueError as error:
        return error


def test_a_fault_tells_where_and_not_what() -> None:
    text = place(fault())
    assert text.startswith("ValueError at test_faults.py:") and "fault" in text and "SECRET" not in text
    assert place(None) and place(ValueError("SECRET")) == "ValueError at an unknown place"


def test_what_nobody_caught_is_one_line() -> None:
    said: list[str] = []
    handle = loop_handler(said.append)
    handle(None, {"message": "Fatal error\nSECRET", "exception": fault(), "protocol": "SECRET"})
    handle(None, {"message": "Unclosed"})
    assert len(said) == 2 and not any("SECRET" in line or "\n" in line for line in said)
