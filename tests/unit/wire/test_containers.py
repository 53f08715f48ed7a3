"""Containers in commands and compose files."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from appliance.wire.containers import Container, from_command, from_compose

IMAGE = "vllm/vllm-openai:v0.9.0"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"docker run -d --rm {IMAGE} --model a", Container(IMAGE, ("--model", "a"))),
        (f"sudo podman run -it --gpus all -p 8000:8000 {IMAGE}", Container(IMAGE, (), ports=(("8000", "8000"),))),
        (f"docker run --gpus '\"device=0,1\"' {IMAGE}", Container(IMAGE, (), gpus=("0", "1"))),
        (f"docker run --gpus device=GPU-ab {IMAGE}", Container(IMAGE, (), gpus=("GPU-ab",))),
        (f"docker run --gpus=2 {IMAGE}", Container(IMAGE, (), gpus=("0", "1"))),
        (
            f"docker container run --name llm -e A=b --env=C=d -eE=f -e G --env-file x -v /a:/b:ro "
            f"--mount type=bind,source=/c,target=/d -m 16g --shm-size=1g --ipc host --entrypoint python3 {IMAGE} -m x",
            Container(
                IMAGE,
                ("python3", "-m", "x"),
                {"A": "b", "C": "d", "E": "f"},
                "llm",
                mounts=(("/a", "/b"), ("/c", "/d")),
                memory="16g",
            ),
        ),
        ("docker ps -a", None),
        ("docker run", None),
        ("docker run --gpus", None),
        ("echo hello", None),
    ],
)
def test_docker_run(command: str, expected: Container | None) -> None:
    assert from_command(shlex.split(command)) == expected


def _one(**service: Any) -> Container:
    (container,) = from_compose({"services": {"llm": {"image": IMAGE, **service}}}, {"M": "some/model", "TAG": "1"})
    return container


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({"command": "--model ${M} --port 8000"}, {"words": ("--model", "some/model", "--port", "8000")}),
        ({"command": ["--model", "$M", 8000, True]}, {"words": ("--model", "some/model", "8000", "true")}),
        ({"command": ["a", "$$M"]}, {"words": ("a", "$M")}),
        ({"entrypoint": "vllm serve", "command": ["a"]}, {"words": ("vllm", "serve", "a")}),
        ({"command": ["${NONE}", "${NONE:-x}"]}, {"words": ("${NONE}", "x"), "unread": ("${NONE}",)}),
        ({"environment": {"A": 1, "B": True, "C": None}}, {"env": {"A": "1", "B": "true"}}),
        ({"environment": ["A=1", "B", "C=${M}"]}, {"env": {"A": "1", "C": "some/model"}}),
        ({"ports": ["${TAG}:8000", "127.0.0.1:81:82/tcp", 8000]}, {"ports": (("1", "8000"), ("127.0.0.1:81", "82"))}),
        (
            {"ports": [{"target": 80, "published": "81", "host_ip": "::1"}, {"target": 8}]},
            {"ports": (("[::1]:81", "80"),)},
        ),
        ({"ports": [{"target": 80, "published": 81}]}, {"ports": (("81", "80"),)}),
        ({"volumes": ["/a:/b:ro", "named:/c", "/d"]}, {"mounts": (("/a", "/b"), ("named", "/c"))}),
        ({"volumes": [{"type": "bind", "source": "/a", "target": "/b"}]}, {"mounts": (("/a", "/b"),)}),
        ({"mem_limit": "64g"}, {"memory": "64g"}),
        ({"deploy": {"resources": {"limits": {"memory": "8G"}}}}, {"memory": "8G"}),
        ({"deploy": {"resources": {"reservations": {"devices": [{"device_ids": ["0", "3"]}]}}}}, {"gpus": ("0", "3")}),
        ({"deploy": {"resources": {"reservations": {"devices": [{"count": 2}]}}}}, {"gpus": ("0", "1")}),
        ({"deploy": {"resources": {"reservations": {"devices": [{"count": "all"}]}}}}, {"gpus": ()}),
        ({"gpus": "all"}, {"gpus": ()}),
        ({"gpus": [{"driver": "nvidia", "count": 1}]}, {"gpus": ("0",)}),
        ({"command": None, "environment": None, "volumes": None, "deploy": None}, {}),
    ],
)
def test_compose(service: dict[str, Any], expected: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"image": IMAGE, "words": (), "name": "llm"}
    assert _one(**service) == Container(**plain | expected)


@pytest.mark.parametrize("document", [None, [], "text", {}, {"services": None}, {"services": []}])
def test_no_compose_file(document: object) -> None:
    with pytest.raises(ValueError, match="it has no services"):
        from_compose(document)
