from __future__ import annotations

from appliance.cli.status import lines

NOW = 1_000_000.0


def test_the_incidents_of_the_last_day_are_named() -> None:
    told = [
        {"id": "20261129T173000Z-chat-engine-died", "at": NOW - 90.0, "count": 2},
        {"id": "20261128T173000Z-chat-old", "at": NOW - 2 * 86400.0, "count": 1},
    ]
    shown = "\n".join(lines({"state": "serving", "incidents": told}, NOW))
    assert "incident 20261129T173000Z-chat-engine-died (2 times), 90s ago" in shown
    assert "    llm-appliance incidents 20261129T173000Z-chat-engine-died" in shown
    assert "old" not in shown


def test_without_incidents_nothing_is_said() -> None:
    assert "incident" not in "\n".join(lines({"state": "serving", "incidents": None}, NOW))
    assert "incident" not in "\n".join(lines({"state": "serving"}, NOW))


def test_requests_in_quarantine_are_told_with_the_way_out() -> None:
    def shown(refused: int) -> str:
        return "\n".join(lines({"state": "serving", "gateway": {"quarantine": {"refused": refused}}}, NOW))

    assert "1 request is refused for up to an hour" in shown(1) and "systemctl restart llm-gateway" in shown(1)
    assert "2 requests are refused" in shown(2)
    assert "refused" not in shown(0) and "refused" not in "\n".join(lines({"gateway": {}}, NOW))
