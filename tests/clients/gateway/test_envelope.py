"""What surrounds every request: keys, ids, bounds, and fields that nobody knows."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer
from harness.running_control_plane import running
from harness.running_gateway import running_gateway

COMPLETIONS = "/v1/completions"


@asynccontextmanager
async def in_front_of_a_fake(*flags):
    """A client of a gateway with flags."""
    async with (
        FakeServer(FakeInferenceService()) as server,
        running_gateway(server.target, flags=flags) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        yield http


async def test_a_request_id_goes_through_all_planes_and_comes_back(fake_front):
    answer = await fake_front.http.post(COMPLETIONS, json={"prompt": "x"}, headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine" == fake_front.fake.seen[-1].request_id
    assert answer.json()["id"] == "cmpl-mine"


@pytest.mark.parametrize("headers", [{}, [(b"x-request-id", "é".encode())], {"x-request-id": "x" * 201}])
async def test_without_a_good_one_the_gateway_makes_one(fake_front, headers):
    answer = await fake_front.http.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
    assert len(answer.headers["x-request-id"]) == 24
    assert answer.headers["x-request-id"] == fake_front.fake.seen[-1].request_id


async def test_unknown_fields_are_listed(fake_front):
    body = {"prompt": "x", "füür": 1, "stream_options": {"more": 1}}
    answer = await fake_front.http.post(COMPLETIONS, json=body)
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "f%C3%BC%C3%BCr, stream_options.more")
    chat = {"messages": [{"role": "user", "content": "x", "mood": "good"}]}
    assert (await fake_front.http.post("/v1/chat/completions", json=chat)).headers["x-ignored-fields"] == "messages[0].mood"


async def test_a_strict_gateway_refuses_unknown_fields():
    async with in_front_of_a_fake("--strict") as http:
        answer = await http.post(COMPLETIONS, json={"prompt": "x", "more": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "more")


async def body_of(num_bytes):
    for _ in range(num_bytes // 100):
        yield b" " * 100


@pytest.mark.parametrize("content", [b" " * 2000, None])
async def test_a_body_that_is_too_large_is_refused_by_its_length_or_when_it_comes(content):
    async with in_front_of_a_fake("--max-body-bytes", "1000") as http:
        answer = await http.post(COMPLETIONS, content=content or body_of(2000))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert (await http.get("/health")).status_code == 200


async def test_a_client_that_sends_all_of_a_body_before_it_looks_is_told_too():
    async with in_front_of_a_fake("--max-body-bytes", "300000") as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
        for _ in range(10):
            writer.write(b" " * 100_000)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_keys_go_to_the_control_plane_which_decides(scripted_model, tmp_path):
    (tmp_path / "keys").write_text("secret-of-someone\n")
    keys = str(tmp_path / "keys")
    flags = ("--api-keys-file", keys, "--admin-key-file", keys, "--worker", "127.0.0.1:1")
    refused = ([], [(b"authorization", b"Bearer wrong")], [(b"authorization", b"Basic x")], [(b"authorization", "Bearer é".encode())])
    async with (
        running(scripted_model, *flags) as server,
        running_gateway(f"127.0.0.1:{server.plane.ports['address']}") as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        for headers in refused:
            for call in (http.get("/v1/models", headers=headers), http.post("/tokenize", json={"prompt": "x"}, headers=headers)):
                answer = await call
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), headers
        good = {"authorization": "Bearer secret-of-someone"}
        assert [model["id"] for model in (await http.get("/v1/models", headers=good)).json()["data"]] == ["model"]
        assert (await http.post("/tokenize", json={"prompt": "x"}, headers=good)).json()["count"] == 2
        assert (await http.post("/tokenize", json={"prompt": "x"})).status_code == 401


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "the body = []"),
        (b"", "the body is missing"),
        (b"{}", "prompt is missing"),
        (b'{"prompt": "\\ud83d"}', "surrogates"),
        (b'{"prompt": 5}', "prompt = 5: Input should be a valid string or a valid list"),
        (b'{"prompt": [1, -2]}', "prompt.1 = -2: Input should be greater than or equal to 0"),
        (b'{"prompt": "\xe4"}', "no JSON in UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"prompt": "x", "temperature": "hot"}', "temperature = 'hot'"),
        (b'{"prompt": "x", "temperature": NaN}', "nan"),
        (b'{"prompt": "x", "seed": -1}', "seed = -1"),
        (b'{"prompt": "x", "n": 1, "best_of": 2}', "best_of = 2, must equal n = 1"),
        (b'{"prompt": "x", "suffix": "y"}', "suffix = 'y': is not supported"),
        (b'{"prompt": "x", "max_tokens": 4294967296}', "max_tokens = 4294967296"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_bad_body_is_told_by_field_and_value(front, content, words):
    answer = await front.http.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert words in error["message"]


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}])
async def test_a_body_that_is_not_sent_as_json_is_refused(fake_front, headers):
    answer = await fake_front.http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert not fake_front.fake.seen


async def test_what_the_application_does_not_catch_is_a_500_with_an_id(fake_front, monkeypatch):
    monkeypatch.setattr("clients.gateway.routes.models._shape", lambda model: json.loads("not"))
    answer = await fake_front.http.get("/v1/models", headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["x-request-id"]) == (500, "internal_error", "mine")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("DELETE", "/v1/models", 405), ("GET", COMPLETIONS, 405)])
async def test_unknown_routes_have_the_same_shape(fake_front, method, path, status):
    answer = await fake_front.http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, "unknown_url")


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/v1/responses"])
async def test_a_trace_goes_on_to_the_control_plane(fake_front, path):
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "input": "x"}
    good, bad = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f"
    for header in (good, bad):
        assert (await fake_front.http.post(path, json=body, headers={"traceparent": header})).status_code == 200
    assert fake_front.fake.traceparents[-2:] == [good, None]
