from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from appliance.config.model import Config, Network
from appliance.errors import Failed
from appliance.runtime import child
from appliance.runtime.layout import Layout
from tests.support.certificates import certificate, trusting
from tests.support.waiting import wait_until


def run(code: str, **more: object) -> child.Ended:
    words = [sys.executable, "-c", code]
    return child.run(words, env={"PATH": os.environ["PATH"]}, cwd="/", **{"deadline_s": 20.0, **more})  # type: ignore[arg-type]


def test_status_and_last_words() -> None:
    ended = run("import sys; [print(n, flush=True) for n in range(100)]; print('end', file=sys.stderr); sys.exit(3)")
    assert ended.status == 3
    assert ended.lines[-1] == "end"
    assert len(ended.lines) == child.KEPT_LINES


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('what is wrong'); raise SystemExit(1)", "what is wrong"),
        ("raise SystemExit(3)", "it ended with status 3"),
        # As a program does on a processor that it was not made for.
        ("import os; print('importing', flush=True); os.kill(os.getpid(), 4)", "it was ended by SIGILL"),
        ("import os; os.kill(os.getpid(), 40)", "it was ended by signal 40"),
    ],
)
def test_the_end_in_words(code: str, words: str) -> None:
    assert run(code).end == words


def test_lines_are_handed_over_as_they_come() -> None:
    heard: list[str] = []
    assert run("print('a'); print('b')", on_line=heard.append) == child.Ended(0, ())
    assert heard == ["a", "b"]


def test_what_is_late_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(marker)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    with pytest.raises(Failed, match="did not end within 1s and was stopped"):
        run(code, deadline_s=1.0)
    pid = int(marker.read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2],
               10.0, "the grandchild's end", 0.02)  # fmt: skip


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(Failed, match="/nonexistent/uv cannot be started: No such file"):
        child.run(["/nonexistent/uv"], env={}, cwd="/", deadline_s=1.0)


def test_a_child_sees_settings_of_clients_and_nothing_else() -> None:
    inherited = {
        "PATH": "/bin",
        "PIP_INDEX_URL": "p",
        "UV_INDEX_URL": "u",
        "https_proxy": "http://old",
        "LD_PRELOAD": "x",
        "NOTIFY_SOCKET": "/run/s",
        "PYTHONPATH": "x",
        "CREDENTIALS_DIRECTORY": "x",
    }
    config = Config(network=Network(https_proxy="http://proxy:3128", no_proxy="10.0.0.0/8", ca_file="/ca.pem"))
    made = child.environment(config, Layout("/s", "/r"), inherited)
    assert not {"LD_PRELOAD", "NOTIFY_SOCKET", "PYTHONPATH", "CREDENTIALS_DIRECTORY"} & set(made)
    assert (made["PIP_INDEX_URL"], made["UV_INDEX_URL"]) == ("p", "u")
    assert made["https_proxy"] == made["HTTPS_PROXY"] == "http://proxy:3128"
    assert made["no_proxy"] == made["NO_PROXY"] == "10.0.0.0/8"
    certificates = Layout("/s", "/r").certificates
    assert made["SSL_CERT_FILE"] == made["PIP_CERT"] == made["REQUESTS_CA_BUNDLE"] == certificates
    assert made["HOME"].startswith("/s/runtimes/")


def test_clients_get_the_operators_certificates_besides_the_systems(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path), str(tmp_path))
    Path(layout.scratch).mkdir(parents=True)
    for name in ("system", "own"):
        (tmp_path / name).mkdir()
    system, own = (certificate(tmp_path / name, name) for name in ("system", "own"))
    config = Config(network=Network(ca_file=str(own)))
    child.write_certificates(config, layout, {"SSL_CERT_FILE": str(system)})
    names = {entry["subject"][0][0][1] for entry in trusting(Path(layout.certificates)).get_ca_certs()}
    assert names == {"system", "own"}
