"""Every relayed route, streamed and not; what crosses and what does not."""

from __future__ import annotations

import json

import pytest

from tests.support.gatewayprocess import MODEL, FakeEngine, Gateway, chat, fault


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize", "/v1/messages",
     "/v1/messages/count_tokens", "/v1/responses", "/v1/completions"],
)  # fmt: skip
def test_a_route_is_relayed_to_the_same_path(gateway: Gateway, engine: FakeEngine, path: str) -> None:
    answer = gateway.request("POST", path, {"model": MODEL, "input": "a"}, X_Request_Id=f"route{path}")
    assert answer.status == 200 and answer.json
    seen = engine.marked(f"route{path}")
    assert seen and seen["path"] == path
    assert answer.headers["x-engine"] == "default" and answer.headers["x-request-id"] == f"route{path}"


def test_a_transcription_is_relayed_by_its_form_field(gateway: Gateway, engine: FakeEngine) -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b\r\n'
        b'Content-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode() + b"\r\n--b--\r\n"
    )
    answer = gateway.request(
        "POST", "/v1/audio/transcriptions", body, Content_Type="multipart/form-data; boundary=b", X_Request_Id="audio"
    )
    assert answer.status == 200
    seen = engine.marked("audio")
    assert seen and seen["size"] == len(body) and seen["headers"]["content-type"].endswith("boundary=b")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_the_other_apis_stream_unchanged(gateway: Gateway, path: str) -> None:
    answer = gateway.request("POST", path, {"model": MODEL, "stream": True, "max_tokens": 4})
    names = [event.split(b"\n")[0] for event in answer.events]
    assert names[0] in (b"event: message_start", b"event: response.created")
    assert names[-1] in (b"event: message_stop", b"event: response.completed")
    assert len([n for n in names if n.endswith(b"delta") and n != b"event: message_delta"]) == 4


def test_usage_of_every_api_is_counted(gateway: Gateway) -> None:
    before = _tokens(gateway)
    for path in ("/v1/messages", "/v1/responses", "/v1/chat/completions", "/v1/completions"):
        for stream in (False, True):
            answer = gateway.request("POST", path, {"model": MODEL, "stream": stream, "max_tokens": 5})
            assert answer.status == 200
    assert _tokens(gateway) - before == 8 * 5


def _tokens(gateway: Gateway) -> float:
    text = gateway.request("GET", "/metrics", port=gateway.admin_port).body.decode()
    return sum(
        float(line.split()[-1]) for line in text.splitlines()
        if line.startswith("llm_appliance_tokens_total{") and 'kind="completion"' in line
    )  # fmt: skip


def test_stream_headers(gateway: Gateway) -> None:
    answer = gateway.request("POST", "/v1/chat/completions", chat(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no" and answer.headers["cache-control"] == "no-cache"
    assert int(answer.headers["x-queue-time-ms"]) >= 0
    assert answer.headers["x-request-id"] and answer.headers["x-engine"] == "default"
    assert "server" not in answer.headers and "keep-alive" not in answer.headers


def test_header_hygiene_towards_the_engine(gateway: Gateway, engine: FakeEngine) -> None:
    gateway.request(
        "POST", "/v1/chat/completions", chat(), Authorization="Bearer sk-secret", x_api_key="sk-secret",
        Cookie="a=b", Connection="x-gone, keep-alive", X_Gone="1", TE="trailers", X_Kept="1", X_Request_Id="hygiene",
        X_Forwarded_For="1.2.3.4",
    )  # fmt: skip
    seen = engine.marked("hygiene")
    assert seen and seen["headers"]["x-kept"] == "1"
    gone = {"authorization", "x-api-key", "cookie", "x-gone", "te", "connection", "x-forwarded-for"}
    assert not gone & set(seen["headers"])


def test_header_values_of_any_script_pass(gateway: Gateway, engine: FakeEngine) -> None:
    with gateway.open(
        "POST", "/v1/chat/completions", chat(), X_Name="北京".encode().decode("latin-1"), X_Request_Id="script"
    ) as response:
        assert response.status == 200
    seen = engine.marked("script")
    assert seen and seen["headers"]["x-name"].encode("latin-1").decode() == "北京"


def test_a_request_id_that_could_forge_a_line_is_replaced(gateway: Gateway, engine: FakeEngine) -> None:
    answer = gateway.request("POST", "/v1/chat/completions", chat(), X_Request_Id='x" outcome=ok')
    assert answer.headers["x-request-id"] != 'x" outcome=ok' and len(answer.headers["x-request-id"]) == 32


def test_the_body_is_forwarded_as_it_came(gateway: Gateway, engine: FakeEngine) -> None:
    body = '{ "model" : "smollm2-135m",\n"messages":[{"role":"user","content":"\\u00e9 é"}],"n":1.0 }'.encode()
    gateway.request("POST", "/v1/chat/completions", body, X_Request_Id="verbatim")
    seen = engine.marked("verbatim")
    assert seen and seen["size"] == len(body) and seen["stream_options"] is None


def test_only_a_stream_without_usage_is_spliced(gateway: Gateway, engine: FakeEngine) -> None:
    for mark, options in (("own", {"include_usage": True}), ("none", None), ("other", {"include_usage": False})):
        fields = {} if options is None else {"stream_options": options}
        answer = gateway.request("POST", "/v1/chat/completions", chat(stream=True, **fields), X_Request_Id=mark)
        seen = engine.marked(mark)
        assert seen and seen["stream_options"] == {"include_usage": True}
        assert (b'"usage"' in answer.body) == (mark == "own")
        assert answer.events[-1] == b"data: [DONE]"


@pytest.mark.parametrize("script", ["split", "merge", "noframe", "gap=0.01", "comments=0.01,first=0.05,gap=0.03"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_stream_cut_anywhere_arrives_whole(gateway: Gateway, script: str, path: str) -> None:
    body = fault(script + ",tokens=5", stream=True)
    plain = gateway.request("POST", path, fault("tokens=5", stream=True))
    answer = gateway.request("POST", path, body)
    assert answer.events == plain.events
    assert len(plain.events) in (7, 10)


def test_a_megabyte_event_passes(gateway: Gateway) -> None:
    answer = gateway.request("POST", "/v1/chat/completions", fault("big=1000000,tokens=2", stream=True))
    texts = [json.loads(event[6:])["choices"][0]["delta"]["content"] for event in answer.events[:-1]]
    assert texts == ["", "x" * 1_000_000, "The", " capital"]


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(gateway: Gateway) -> None:
    import socket

    body = json.dumps(chat(stream=True)).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        data = b"".join(iter(lambda: raw.recv(65536), b""))
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")


def test_a_connection_is_kept_for_the_next_call(gateway: Gateway) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    local = set()
    for stream in (True, False, True):
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=stream)))
        assert connection.getresponse().read()
        local.add(connection.sock.getsockname())
    connection.close()
    assert len(local) == 1
