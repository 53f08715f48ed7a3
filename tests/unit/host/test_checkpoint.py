"""A model's description from a directory and from a hub on loopback, whole, damaged, slow and refused."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.model import Config, Models, Network
from appliance.errors import ApplianceError, Failed, Unreachable
from appliance.host import checkpoint, web
from appliance.host.checkpoint import FIRST_BYTES, from_directory, from_hub
from tests.support.certificates import certificate
from tests.support.fileserver import FileServer, Script, file_server
from tests.support.publishedlogs import attention

CONFIG = json.dumps(attention("qwen3", 2, 64, 8, 2, 8)).encode()
NAME = "Org/Model-1.5"


def shard(*names: str, size: int = 8, padding: int = 0) -> bytes:
    """A safetensors file without its weights but for what a server would send of them."""
    table = {name: {"dtype": "U8", "shape": [size], "data_offsets": [n * size, (n + 1) * size]}
             for n, name in enumerate(names)}  # fmt: skip
    text = json.dumps(table).encode() + b" " * padding
    return len(text).to_bytes(8, "little") + text + bytes(size * len(names))


def index(total: object = 48) -> bytes:
    weights = {"model.a": "m-1.safetensors", "model.b": "m-1.safetensors", "lm_head.weight": "m-2.safetensors"}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weights}).encode()


WHOLE = {
    "config.json": CONFIG,
    "model.safetensors.index.json": index(),
    "m-1.safetensors": shard("model.a", "model.b", size=16),
    "m-2.safetensors": shard("lm_head.weight", size=16),
}
SINGLE = {"config.json": CONFIG, "model.safetensors": shard("model.a")}


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as served:
        yield served


def hub(server: FileServer, files: dict[str, bytes], **models: str) -> Config:
    for name, body in files.items():
        server.files[f"/{NAME}/resolve/main/{name}"] = Script(body)
    return Config(models=Models(endpoint=server.url, **models))  # type: ignore[arg-type]


# --- a directory --------------------------------------------------------------------------------------------------


def directory(tmp_path: Path, files: dict[str, bytes]) -> str:
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)
    return str(tmp_path)


def test_a_directory_in_several_files(tmp_path: Path) -> None:
    found = from_directory(directory(tmp_path, WHOLE))
    assert [tensor.name for tensor in found.tensors] == ["model.a", "model.b", "lm_head.weight"]
    assert (found.total, found.architecture.family) == (48, "qwen3")


def test_a_directory_in_one_file_and_in_another_form(tmp_path: Path) -> None:
    assert from_directory(directory(tmp_path, SINGLE)).total == 8
    (tmp_path / "model.safetensors").unlink()
    assert from_directory(str(tmp_path)).total is None
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(100))
    assert from_directory(str(tmp_path)).total == 100


@pytest.mark.parametrize("files", [{}, {"model.safetensors": shard("a")}])
def test_no_model_here(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(Unreachable, match=r"config\.json"):
        from_directory(directory(tmp_path, files))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("config.json", b"<html>"),
        ("m-1.safetensors", b""),
        ("m-1.safetensors", shard("model.a")[:20]),
        ("m-1.safetensors", b"\xff" * 64),
        ("m-1.safetensors", (1 << 26).to_bytes(8, "little") + b"{"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../../etc/passwd"}}'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, body: bytes) -> None:
    with pytest.raises(Failed, match=re.escape(name)):
        from_directory(directory(tmp_path, {**WHOLE, name: body}))


# --- a hub ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [WHOLE, SINGLE])
def test_a_hub(server: FileServer, files: dict[str, bytes]) -> None:
    found = from_hub(NAME, hub(server, files))
    assert found.total == sum(tensor.size for tensor in found.tensors) == (48 if files is WHOLE else 8)
    assert all(asked is not None and asked.startswith("bytes=0-") for _, asked, _ in server.seen)


def test_weights_are_not_fetched(server: FileServer) -> None:
    large = shard("model.a", size=8 << 20)
    config = hub(server, {**SINGLE, "model.safetensors": large})
    assert from_hub(NAME, config).total == 8 << 20
    assert server.sent < 2 * FIRST_BYTES


def test_a_long_header_is_asked_for_again(server: FileServer) -> None:
    config = hub(server, {**SINGLE, "model.safetensors": shard("model.a", padding=2 * FIRST_BYTES)})
    assert from_hub(NAME, config).total == 8


def test_a_server_without_ranges(server: FileServer) -> None:
    config = hub(server, WHOLE)
    for script in server.files.values():
        script.ranges = False
    assert from_hub(NAME, config).total == 48


def test_without_headers_the_index_tells_the_sum(server: FileServer) -> None:
    config = hub(server, {**WHOLE, "m-2.safetensors": b""})
    del server.files[f"/{NAME}/resolve/main/m-2.safetensors"]
    found = from_hub(NAME, config)
    assert (found.tensors, found.total, found.source) == ((), 48, "the index of its files")
    server.files[f"/{NAME}/resolve/main/m-2.safetensors"] = Script(shard("b"), faults=["503"])
    assert from_hub(NAME, config).total == 48


def test_the_token_goes_to_the_hub(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_secret\n")
    from_hub(NAME, hub(server, SINGLE, token_file=str(tmp_path / "token")))
    assert {sent for _, _, sent in server.seen} == {"Bearer hf_secret"}
    with pytest.raises(Unreachable, match="token_file"):
        from_hub(NAME, hub(server, SINGLE, token_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("fault", "words"),
    [("401", "does not give"), ("403", "does not give"), ("404", "has no model"), ("500", "HTTP 500")],
)
def test_a_hub_that_refuses(server: FileServer, fault: str, words: str) -> None:
    config = hub(server, SINGLE)
    server.files[f"/{NAME}/resolve/main/config.json"].faults.append(fault)
    with pytest.raises(Unreachable, match=words):
        from_hub(NAME, config)


def test_a_hub_that_is_not_there() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        from_hub(NAME, Config(models=Models(endpoint="http://127.0.0.1:1")))


def test_a_hub_that_never_ends(server: FileServer) -> None:
    """Bytes come for ever, a little at a time: the deadline for the whole ends it."""
    ended = threading.Event()
    config = hub(server, {"config.json": CONFIG + b" " * (1 << 20)})

    def crawl(_: int) -> None:
        ended.wait(0.2)

    server.on_block = crawl
    try:
        with pytest.raises(Unreachable, match="cannot be reached"):
            from_hub(NAME, config, deadline_s=0.3)
    finally:
        ended.set()


@pytest.mark.parametrize("name", ["", "x", "../x", "a/b/c", "a/..", "-a/b", "a/b?c", "http://x/y"])
def test_what_is_no_name_of_a_model(name: str) -> None:
    with pytest.raises(ApplianceError, match="neither"):
        from_hub(name, Config())


def test_modelscope_has_its_own_paths(server: FileServer) -> None:
    config = hub(server, {}, source="modelscope")
    for name, body in SINGLE.items():
        server.files[f"/{NAME}/resolve/master/{name}"] = Script(body)
    assert from_hub(NAME, config).total == 8
    assert set(checkpoint.HUBS) == {"huggingface", "modelscope"}


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (Network(), None),
        (Network(https_proxy="http://p:1"), {"http": "http://p:1", "https": "http://p:1"}),
        (Network(https_proxy="http://p:1", no_proxy="hub.example.org"), {}),
        (Network(https_proxy="http://p:1", no_proxy=".example.org, x"), {}),
        (Network(https_proxy="http://p:1", no_proxy="*"), {}),
        (Network(https_proxy="http://p:1", no_proxy="other.org"), {"http": "http://p:1", "https": "http://p:1"}),
    ],
)
def test_the_proxy_of_the_configuration(network: Network, expected: dict[str, str] | None) -> None:
    assert web.proxies(network, "hub.example.org") == expected


def test_the_proxy_is_asked(server: FileServer) -> None:
    config = hub(server, {})
    server.files = {f"http://hub.invalid/{NAME}/resolve/main/{name}": Script(body) for name, body in SINGLE.items()}
    through = replace(
        config, models=Models(endpoint="http://hub.invalid"), network=Network(https_proxy=server.url)
    )  # fmt: skip
    assert from_hub(NAME, through).total == 8


def test_authorities_of_the_operator_are_trusted_besides_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("system", "own"):
        (tmp_path / name).mkdir()
    system, own = (certificate(tmp_path / name, name) for name in ("system", "own"))
    monkeypatch.setenv("SSL_CERT_FILE", str(system))
    for each in (system, own):
        with file_server(each) as server:
            config = replace(hub(server, SINGLE), network=Network(ca_file=str(own)))
            assert [tensor.name for tensor in from_hub(NAME, config).tensors] == ["model.a"]


@pytest.mark.parametrize("content", [None, b"no certificate"], ids=["missing", "garbage"])
def test_a_file_of_authorities_that_is_none_is_named(server: FileServer, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    config = replace(hub(server, SINGLE), network=Network(ca_file=f"{tmp_path}/ca.pem"))
    with pytest.raises(Unreachable, match=rf"\[network\] ca_file {tmp_path}/ca.pem cannot be used"):
        from_hub(NAME, config)


@pytest.mark.parametrize("content", ["t0ken".encode("utf-16"), b"t0ken\nmore"], ids=["utf-16", "two lines"])
def test_a_file_that_holds_more_than_a_token_is_named(server: FileServer, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(Unreachable, match=rf"token_file {tmp_path}/token: it must hold the token alone"):
        from_hub(NAME, hub(server, SINGLE, token_file=f"{tmp_path}/token"))
