"""Which status answers what, on both kinds of call."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane, served_model

from control_plane.edge.service.errors import Deadline, error_of, failure_of
from control_plane.engine.ports import Failure, RequestFailed
from pypto_serving.inference.v1 import inference_pb2 as pb

CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")])


def nothing(plane: ScriptedControlPlane) -> None:
    """The server is as it always is."""


def fails(failure: Failure) -> Callable[[ScriptedControlPlane], None]:
    def arrange(plane: ScriptedControlPlane) -> None:
        plane.engine.failure = RequestFailed("", failure, "because 模型", 1.5 if failure is Failure.QUEUE_FULL else None)

    return arrange


def drains(plane: ScriptedControlPlane) -> None:
    plane.live.close()


def has_a_bug(plane: ScriptedControlPlane) -> None:
    def broken(request: object) -> None:
        raise KeyError("secret")

    plane.engine.submit = broken  # type: ignore[method-assign]


@dataclass(frozen=True)
class Case:
    """What is asked, of what kind of server, and what the status must be and say."""

    code: grpc.StatusCode
    says: str
    spec: dict[str, object] = field(default_factory=lambda: {"text": "Hi"})
    arrange: Callable[[ScriptedControlPlane], None] = nothing


CODE = grpc.StatusCode
CASES = {
    "unknown model": Case(CODE.NOT_FOUND, "模型🙂", {"text": "Hi", "model": "模型🙂"}),
    "bad parameter": Case(CODE.INVALID_ARGUMENT, "temperature", {"text": "Hi", "sampling": pb.SamplingParams(temperature=-1)}),
    "bad id": Case(CODE.INVALID_ARGUMENT, "request_id", {"text": "Hi", "request_id": "请求-1"}),
    "prompt too long": Case(CODE.INVALID_ARGUMENT, "64", {"text": "x" * 64}),
    "other weights": Case(CODE.FAILED_PRECONDITION, "fingerprint", {"resume": pb.Resume(model_fingerprint="other")}),
    "no chat template": Case(CODE.FAILED_PRECONDITION, "--chat-template", {"chat": CHAT}),
    "can never fit": Case(CODE.INVALID_ARGUMENT, "because 模型", arrange=fails(Failure.INVALID_ARGUMENT)),
    "live id": Case(CODE.ALREADY_EXISTS, "because 模型", arrange=fails(Failure.ALREADY_EXISTS)),
    "full queue": Case(CODE.RESOURCE_EXHAUSTED, "because 模型", arrange=fails(Failure.QUEUE_FULL)),
    "no worker": Case(CODE.UNAVAILABLE, "because 模型", arrange=fails(Failure.UNAVAILABLE)),
    "lost too many workers": Case(CODE.ABORTED, "because 模型", arrange=fails(Failure.ABORTED)),
    "aborted": Case(CODE.CANCELLED, "because 模型", arrange=fails(Failure.CANCELLED)),
    "late": Case(CODE.DEADLINE_EXCEEDED, "because 模型", arrange=fails(Failure.DEADLINE_EXCEEDED)),
    "slow": Case(CODE.RESOURCE_EXHAUSTED, "because 模型", arrange=fails(Failure.READER_TOO_SLOW)),
    "drain": Case(CODE.UNAVAILABLE, "shutting down", arrange=drains),
    "our bug": Case(CODE.INTERNAL, "r7", {"text": "Hi", "request_id": "r7"}, has_a_bug),
    "failed in the engine": Case(CODE.INTERNAL, "because 模型", arrange=fails(Failure.INTERNAL)),
}


async def status_of(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "stream"])
async def test_rpc_07_every_condition_has_its_status(case: Case, is_stream: bool) -> None:
    async with scripted_control_plane(model=served_model(chat_template=None)) as plane:
        case.arrange(plane)
        error = await status_of(plane.events(**case.spec) if is_stream else plane.generate(**case.spec))
        assert (error.code(), case.says in error.details()) == (case.code, True)
        assert "secret" not in error.details() and "Traceback" not in error.details()
        assert ("retry-after-ms" in dict(error.trailing_metadata())) is (case.arrange is CASES["full queue"].arrange)
        assert ("cancelled-by" in dict(error.trailing_metadata())) is (case.code is CODE.CANCELLED)
        assert plane.calls._calls[("GenerateStream" if is_stream else "Generate", case.code.name.lower())] == 1


async def test_rpc_07_a_method_that_does_not_exist_is_not_implemented() -> None:
    async with scripted_control_plane() as plane:
        error = await status_of(plane.channel.unary_unary("/pypto_serving.inference.v1.InferenceService/Embed")(b""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_rpc_07_every_failure_has_an_error_and_back() -> None:
    for failure in Failure:
        assert failure_of(error_of(RequestFailed("x", failure, "because")), Deadline(None)) is failure


@pytest.mark.parametrize("name", ["模型🙂", "/models/é", "x" * 20_000, "é" * 20_000])
async def test_rpc_04_error_texts_arrive_readable(name: str) -> None:
    async with scripted_control_plane() as plane:
        error = await status_of(plane.generate(text="Hi", model=name))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert name[:500] in error.details()
        assert len(error.details().encode()) <= 2000


async def test_rpc_05_binary_metadata_is_ignored() -> None:
    async with scripted_control_plane() as plane:
        request = pb.GenerateRequest(spec=pb.GenerationSpec(text="Hi"))
        metadata = (("x-trace-bin", bytes(range(256))), ("x-request-id", "x" * 4000))
        response = await plane.stub.Generate(request, metadata=metadata)
        assert response.choices[0].text == "hello"


@pytest.mark.parametrize("request_id", ["请求-1", "two\nlines", "x" * 257, "🙂", "\x00", "tab\t"])
async def test_rpc_05_ids_are_echoed_exactly_or_refused(request_id: str, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_control_plane() as plane:
        error = await status_of(plane.generate(text="Hi", request_id=request_id))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await plane.generate(text="Hi", request_id="~a Z!")).started.request_id == "~a Z!"
        assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_drain_refuses_before_it_reads_a_prompt() -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        plane.live.close()
        assert (await status_of(plane.generate(text="Hi"))).code() is grpc.StatusCode.UNAVAILABLE
        assert plane.limit.num_waiting == 0


async def test_requests_that_wait_for_the_first_worker_are_refused_when_the_drain_begins() -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        waiting = asyncio.ensure_future(plane.generate(text="Hi"))
        while not plane.limit.num_waiting:
            await asyncio.sleep(0.005)
        plane.limit.close()
        plane.live.close()
        assert (await status_of(waiting)).code() is grpc.StatusCode.UNAVAILABLE
