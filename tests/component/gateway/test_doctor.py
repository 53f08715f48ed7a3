"""`doctor --through`: each thing that stands in the way is found, named and told how to be mended; the rest is good."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gatewayprocess import ROOT, FakeEngine, Gateway, config, remote
from tests.support.webserver import WebServer

KEY = "sk-doctor-MARKED"
GOOD = {
    "tls", "errors", "delivery", "compression", "http", "comments", "silence", "address", "bodies", "model",
}  # fmt: skip
# name -> the server, what is changed in the example, and what must be found: check -> words of evidence and remedy
WAYS: dict[str, tuple[str, list[tuple[str, str]], dict[str, tuple[str, str]]]] = {
    "nginx": ("nginx", [], {}),
    "caddy": ("caddy", [], {}),
    "buffer": (
        "nginx", [("proxy_buffering off;", "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;")],
        {"delivery": ("held back", "proxy_buffering off;")},
    ),
    "compressor": ("nginx", [("gzip off;", "")], {"compression": ("gzip", "gzip off;")}),
    "old http": (
        "nginx", [("proxy_http_version 1.1;", "proxy_http_version 1.0;")],
        {"http": ("HTTP/1.0", "proxy_http_version 1.1;")},
    ),
    "filter": (
        "nginx", [("gzip off;", "gzip off; sub_filter_types *; sub_filter_once off; sub_filter ': keep-alive' '';")],
        {"comments": ("0 of ", "bytes")},
    ),
    "small bodies": ("nginx", [("client_max_body_size 0;", "client_max_body_size 1m;")],
                     {"bodies": ("413", "client_max_body_size 0;")}),
    "impatient": ("nginx", [("proxy_read_timeout 1h;", "proxy_read_timeout 1s;")],
                  {"silence": ("cut after", "proxy_read_timeout 1h;"), "address": ("ignores", "trusted_proxies")}),
    "own pages": (
        "nginx", [("proxy_buffering off;", "proxy_intercept_errors on; error_page 404 = @own;"),
                  ("location / {", "location @own { return 404 'no such page'; }\n    location / {")],
        {"errors": ("404 in ", "proxy_intercept_errors")},
    ),
    "nothing behind": ("nginx", [], {"errors": ("502", "listen")}),
}  # fmt: skip
QUIET = ("impatient",)  # behind these the gateway sends no comments in two seconds, and trusts nobody


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "appliance", "doctor", *words]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LLM_APPLIANCE_API_KEY": KEY, **extra}


@pytest.fixture(scope="module")
def reports(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All ways at once: each takes seconds of waiting and little work."""
    here = tmp_path_factory.mktemp("doctor")
    trusting = Gateway(
        here / "g1",
        config(remote(engine.url), gateway='trusted_proxies = ["127.0.0.1"]\n[gateway.stream]\nkeepalive = "200ms"\n'),
    )
    strict = Gateway(here / "g2", config(remote(engine.url)))
    servers, asked = [], {}
    try:
        for name, (kind, changes, _) in WAYS.items():
            port = 1 if name == "nothing behind" else (strict if name in QUIET else trusting).port
            servers.append(WebServer(kind, here / name.replace(" ", "-"), port, *changes))
            words = ["--through", f"{servers[-1].url}/v1", "--ca", str(servers[-1].certificate), "--silence", "2s"]
            asked[name] = subprocess.Popen(
                command(*words, "--json"), env=environment(), stdout=-1, stderr=-1, text=True
            )
        asked["direct"] = subprocess.Popen(
            command("--through", f"http://127.0.0.1:{trusting.port}", "--json", "--silence", "0s"),
            env=environment(), stdout=-1, stderr=-1, text=True,
        )  # fmt: skip
        yield {name: (*process.communicate(timeout=100), process.returncode) for name, process in asked.items()}
        assert "MARKED" not in trusting.text() + strict.text()
    finally:
        for process in asked.values():
            process.kill()
        for server in servers:
            server.close()
        trusting.kill()
        strict.kill()


def found(report: tuple[str, str, int]) -> dict[str, dict[str, str]]:
    out, err, _ = report
    assert out, err
    return {one["name"]: one for one in json.loads(out)}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.slow
def test_what_stands_in_the_way_is_found(reports: dict[str, Any], name: str) -> None:
    expected = WAYS[name][2]
    by_name = found(reports[name])
    for check, (evidence, remedy) in expected.items():
        assert by_name[check]["verdict"] in ("fail", "warn"), by_name
        assert evidence in by_name[check]["evidence"] and remedy in by_name[check]["remedy"], by_name[check]
    failed = {check for check, one in by_name.items() if one["verdict"] == "fail"}
    assert failed <= set(expected), by_name
    assert reports[name][2] == (1 if failed else 0)
    assert KEY not in "".join(map(str, reports[name]))


@pytest.mark.parametrize("name", ["nginx", "caddy", "direct"])
@pytest.mark.slow
def test_every_question_is_asked_where_nothing_is_wrong(reports: dict[str, Any], name: str) -> None:
    by_name = found(reports[name])
    assert set(by_name) == GOOD
    assert {one["verdict"] for one in by_name.values()} <= {"ok", "warn"}, by_name
    believed = "absent" if name == "direct" else "by X-Forwarded-For of a trusted proxy"
    assert name == "direct" or believed in by_name["address"]["evidence"]
    assert by_name["compression"]["verdict"] == by_name["comments"]["verdict"] == "ok"


def ask(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("--through", *words), env=environment(**extra), capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_a_certificate_that_nobody_signed_ends_it_before_the_key_is_sent(gateway: Gateway, tmp_path: Path) -> None:
    server = WebServer("nginx", tmp_path, gateway.port)
    try:
        seen = ask(server.url, "--silence", "0s")
        assert seen.returncode == 1 and "the certificate does not hold: self" in seen.stdout
        assert "the key was not sent" in seen.stdout and seen.stdout.count("\n") == 2
        spoken = ask(f"https://127.0.0.1:{gateway.port}")
        assert spoken.returncode == 1 and "no TLS is spoken there" in spoken.stdout
    finally:
        server.close()


@pytest.mark.slow
def test_a_key_that_the_gateway_does_not_know(engine: FakeEngine, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "g", config(remote(engine.url), auth=f'keys_file = "{tmp_path}/keys.toml"'))
    try:
        (tmp_path / "key").write_text("sk-other-MARKED\n")
        seen = ask(f"http://localhost:{gateway.port}/v1/", "--key-file", str(tmp_path / "key"))
        assert seen.returncode == 1 and "--key-file" in seen.stdout and "MARKED" not in seen.stdout + seen.stderr
    finally:
        gateway.kill()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    seen = ask(f"http://127.0.0.1:{port}")
    assert seen.returncode == 3 and "does not answer: connection refused" in seen.stderr


@pytest.mark.parametrize(
    "words",
    [["ftp://x"], ["https://"], ["https://h:99999"], ["http://h?a=1"], ["http://u:p@h"], ["http://h", "--silence", "x"],
     ["http://h", "--silence", "3h"], ["https://h", "--ca", "/nothing"], ["http://h", "--key-file", "/nothing"]],
)  # fmt: skip
def test_wrong_usage(words: list[str]) -> None:
    seen = ask(*words)
    assert seen.returncode == 2 and seen.stderr.startswith("llm-appliance: "), seen.stderr


@pytest.mark.slow
def test_the_appliance_itself(gateway: Gateway, tmp_path: Path) -> None:
    """Without --through: the machine that it runs on."""
    text = gateway.config_file.read_text().replace(
        'admin_listen = "127.0.0.1:0"', f'admin_listen = "127.0.0.1:{gateway.admin_port}"'
    )
    text = text.replace("remote = ", 'served_names = ["m"]\nremote = ')
    (tmp_path / "config.toml").write_text(text)
    env = environment(LLM_APPLIANCE_STATE=str(tmp_path), LLM_APPLIANCE_RUN=str(tmp_path))
    words = command("--config", str(tmp_path / "config.toml"), "--json")
    good = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    verdicts = {one["name"]: one["verdict"] for one in json.loads(good.stdout)}
    assert verdicts["config"] == verdicts["gateway"] == "ok" and verdicts["keys"] == "warn", good.stdout
    assert good.returncode == ("fail" in verdicts.values())
    (tmp_path / "config.toml").write_text(
        text.replace("required = false", f'keys_file = "{tmp_path}/keys.toml"') + "x = 1\n"
    )
    bad = json.loads(subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout)
    assert [one["verdict"] for one in bad if one["name"] == "config"] == ["fail"] and "x" in bad[0]["evidence"]
