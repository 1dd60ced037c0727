"""One line in the log per request, whatever becomes of it."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from harness.service import Service, scripted_service, status_of
from harness.waiting import until, until_first_token

from clients.request import Request, generation_spec
from control_plane.edge.service.admission.admission import Admission
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KEY = (("authorization", "Bearer key-of-a-test"),)


class Lines:
    """The fields of the lines of requests."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog

    def __call__(self) -> list[dict[str, Any]]:
        return [vars(record) for record in self._caplog.records if record.getMessage() == "request"]

    async def one(self) -> dict[str, Any]:
        """The only one, waited for."""
        await until(lambda: bool(self()))
        (line,) = self()
        return line


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(scripted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service that asks for a key."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key-of-a-test name=acme\n")
    async with scripted_service(scripted_model, "--api-keys-file", str(keys), "--admin-key-file", str(keys)) as service:
        yield service


def generate(service: Service, *metadata: tuple[str, str], **fields: Any) -> "grpc.aio.UnaryUnaryCall[Any, Any]":
    return service.stub.Generate(pb.GenerateRequest(spec=generation_spec(Request(**fields))), metadata=metadata)


async def test_a_line_says_who_asked_what_it_cost_and_how_it_ended(guarded: Service, lines: Lines) -> None:
    prompt = list(b"w" * 40 + b":")
    await generate(guarded, *KEY, token_ids=prompt, max_tokens=3)
    lines._caplog.clear()
    await generate(guarded, *KEY, ("traceparent", TRACE), token_ids=prompt, max_tokens=3, request_id="mine", n=2)
    line = await lines.one()
    assert (line["levelname"], line["method"], line["code"], line["finish"]) == ("INFO", "Generate", "ok", "length")
    assert (line["request_id"], line["key"], line["model"], line["traceparent"]) == ("mine", "acme", "model", TRACE)
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (41, 40, 6)
    assert line["worker"] == guarded.worker.address and line["peer"].startswith("ipv4:127.0.0.1:")
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"] <= line["total_seconds"]


async def test_a_stream_that_its_client_leaves_has_a_line(scripted: Service, lines: Lines) -> None:
    spec = generation_spec(Request("endless:", max_tokens=200, request_id="left"))
    call = scripted.stub.GenerateStream(pb.GenerateStreamRequest(spec=spec))
    await until_first_token(call)
    call.cancel()
    line = await lines.one()
    assert (line["request_id"], line["method"], line["code"], line["finish"]) == ("left", "GenerateStream", "cancelled", "none")
    assert line["output_tokens"] >= 1 and line["first_token_seconds"] > 0 and "worker" not in line


async def told_id(call: "grpc.aio.UnaryUnaryCall[Any, Any]") -> str:
    """What the client of a request that fails is told to look for in the log."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return str(dict(failure.value.trailing_metadata())["request-id"])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": "x:", "temperature": -1, "request_id": "wrong"}, "invalid_argument"),
        ({"prompt": "x:", "model": "another"}, "not_found"),
        ({"prompt": "x:", "request_id": "two\nlines"}, "invalid_argument"),
    ],
)
async def test_a_refused_request_has_a_line(scripted: Service, lines: Lines, fields: dict[str, Any], code: str) -> None:
    told = await told_id(generate(scripted, **fields))
    line = await lines.one()
    assert (line["code"], line["request_id"]) == (code, told) and told.isalnum() and (told == "wrong" or len(told) == 32)
    assert "prompt_tokens" not in line and "worker" not in line and line["total_seconds"] >= 0


@pytest.mark.parametrize("given", ["", "mine"])
async def test_a_defect_is_told_by_one_id_everywhere(
    scripted: Service, lines: Lines, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    async def fails(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(Admission, "admit", fails)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await generate(scripted, prompt="x:", request_id=given)
    line = await lines.one()
    [failed] = [vars(record) for record in caplog.records if record.getMessage() == "call failed"]
    told = dict(failure.value.trailing_metadata())["request-id"]
    assert (line["code"], line["request_id"], failed["request_id"]) == ("internal", told, told)
    assert f"request {told};" in failure.value.details() and told == (given or told) and len(told) in (4, 32)


async def test_a_defect_of_a_call_without_a_request_is_told_by_an_id_too(
    scripted: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "check_model", lambda *_: 1 / 0)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await scripted.stub.Tokenize(pb.TokenizeRequest(text="x"))
    [failed] = [vars(record) for record in caplog.records if record.getMessage() == "call failed"]
    told = dict(failure.value.trailing_metadata())["request-id"]
    assert failed["request_id"] == told and f"request {told};" in failure.value.details()


async def test_an_id_that_the_server_draws_is_the_answers_too(scripted: Service, lines: Lines) -> None:
    answer = await generate(scripted, prompt="x:", max_tokens=1)
    assert (await lines.one())["request_id"] == answer.started.request_id and len(answer.started.request_id) == 32


async def test_a_call_without_a_key_has_a_line_that_names_its_peer(guarded: Service, lines: Lines) -> None:
    told = await told_id(generate(guarded, prompt="x:"))
    line = await lines.one()
    assert line["code"] == "unauthenticated" and line["peer"].startswith("ipv4:127.0.0.1:") and "key" not in line
    assert line["request_id"] == told and line["total_seconds"] >= 0


async def test_a_request_in_a_drain_has_a_line(scripted_model: Path, lines: Lines) -> None:
    async with scripted_service(scripted_model) as service:
        running = service.stub.GenerateStream(pb.GenerateStreamRequest(spec=generation_spec(Request("endless:", max_tokens=200))))
        await until_first_token(running)
        service.server.stop.request_stop()
        await until(lambda: service.server.plane.front_end.live.is_closed)
        told = await told_id(generate(service, prompt="x:"))
        running.cancel()
        [line] = [line for line in lines() if line["code"] == "unavailable"]
        assert line["request_id"] == told and 0 <= line["total_seconds"] < 5


async def test_stop_strings_end_with_stop_and_count_up_to_them(scripted: Service, lines: Lines) -> None:
    name = scripted.plan(b"abcXYZ")
    await generate(scripted, prompt=f"{name}:", stop=["X"], max_tokens=50)
    line = await lines.one()
    assert (line["finish"], line["output_tokens"]) == ("stop", 4)


async def test_other_calls_have_a_line_for_debugging_only(scripted: Service, caplog: pytest.LogCaptureFixture) -> None:
    for level, num_lines in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.set_level(level, "control_plane.edge.service.request_log")
        await scripted.stub.Tokenize(pb.TokenizeRequest(text="x"))
        assert [record.getMessage() for record in caplog.records if record.name.endswith("request_log")] == ["call"] * num_lines


@pytest.mark.parametrize(("which", "codes"), [("all", ["ok", "invalid_argument"]), ("failed", ["invalid_argument"]), ("none", [])])
async def test_the_flag_says_which_requests_have_a_line(scripted_model: Path, lines: Lines, which: str, codes: list[str]) -> None:
    async with scripted_service(scripted_model, "--request-log", which) as service:
        await generate(service, prompt="x:", max_tokens=1)
        await status_of(generate(service, prompt="x:", temperature=-1))
    assert [line["code"] for line in lines()] == codes
