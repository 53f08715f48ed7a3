from __future__ import annotations

from aiohttp.http_exceptions import BadHttpMessage

from appliance.gateway.faults import ServerLog, loop_handler, place


def fault() -> ValueError:
    try:
        raise ValueError("SECRET")
    except ValueError as error:
        return error


def test_a_fault_tells_where_and_not_what() -> None:
    text = place(fault())
    assert text.startswith("ValueError at test_faults.py:") and "fault" in text and "SECRET" not in text
    assert place(None) and place(ValueError("SECRET")) == "ValueError at an unknown place"


def test_what_clients_send_wrong_is_no_fault() -> None:
    said: list[str] = []
    log = ServerLog(said.append)
    log.debug("x")
    for error in (BadHttpMessage("SECRET"), ConnectionResetError("SECRET")):
        log.exception("Error handling request from %s", "x", exc_info=error)
    assert not said
    log.error("a request failed", exc_info=fault())
    assert len(said) == 1 and "SECRET" not in said[0] and "\n" not in said[0]


def test_what_nobody_caught_is_one_line() -> None:
    said: list[str] = []
    handle = loop_handler(said.append)
    handle(None, {"message": "Fatal error\nSECRET", "exception": fault(), "protocol": "SECRET"})
    handle(None, {"message": "Unclosed"})
    assert len(said) == 2 and not any("SECRET" in line or "\n" in line for line in said)
