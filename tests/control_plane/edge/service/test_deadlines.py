"""Deadlines of clients, wherever their request is."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane, served_model
from fakes.text.tokenizers import BlockedTokenizer

from control_plane.edge.service import errors
from control_plane.edge.service.errors import Deadline
from control_plane.engine.ports import Failure
from pypto_serving.inference.v1 import inference_pb2 as pb

_SECONDS = 0.1


def call(plane: ScriptedControlPlane, seconds: float, is_stream: bool, **spec: object) -> Awaitable[object]:
    if is_stream:
        stream = plane.stub.GenerateStream(pb.GenerateStreamRequest(spec=pb.GenerationSpec(**spec)), timeout=seconds)

        async def read() -> None:
            while await stream.read() is not grpc.aio.EOF:
                pass

        return read()
    return plane.stub.Generate(pb.GenerateRequest(spec=pb.GenerationSpec(**spec)), timeout=seconds)


async def ends_at_its_deadline(plane: ScriptedControlPlane, is_stream: bool, **spec: object) -> None:
    await plane.channel.channel_ready()  # else a busy machine may use the time up before the server hears of the call
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(plane, _SECONDS, is_stream, **spec)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    method = "GenerateStream" if is_stream else "Generate"
    await until(lambda: plane.calls._calls.get((method, "deadline_exceeded")) == 1)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


both_kinds = pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "stream"])


@both_kinds
async def test_can_05_a_request_of_the_engine_ends_there_too(is_stream: bool) -> None:
    async with scripted_control_plane() as plane:
        plane.engine.gate.clear()
        await ends_at_its_deadline(plane, is_stream, text="Hi", request_id="x")
        await until(lambda: plane.engine.ended == {"x": Failure.DEADLINE_EXCEEDED} and not len(plane.live))


@both_kinds
async def test_can_05_a_request_that_waits_for_the_first_worker_never_reaches_the_engine(is_stream: bool) -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        await ends_at_its_deadline(plane, is_stream, text="Hi")
        await until(lambda: plane.limit.num_waiting == 0)
        assert plane.engine.submitted == []


@both_kinds
async def test_can_05_a_request_that_waits_for_the_tokenizer_never_reaches_the_engine(is_stream: bool) -> None:
    tokenizer = BlockedTokenizer()
    async with scripted_control_plane(model=served_model(tokenizer=tokenizer)) as plane:
        plane.join_worker(max_model_len=5000)
        try:
            await ends_at_its_deadline(plane, is_stream, text="x" * 2000)
        finally:
            tokenizer.go_on.set()
        assert (plane.engine.submitted, tokenizer.num_long_texts) == ([], 1)


async def test_can_05_a_takeover_that_waits_for_its_id_ends_too() -> None:
    async with scripted_control_plane() as plane:
        plane.engine.gate.clear()
        first = plane.stream(text="Hi", request_id="x")
        started = (await first.read()).started
        plane.engine.end = lambda *arguments: None  # type: ignore[method-assign]  # an engine that does not answer
        resume = pb.Resume(
            key=started.resume_key, effective=started.effective, prompt_token_ids=[256, *b"Hi"], model_fingerprint=started.model_fingerprint
        )
        await ends_at_its_deadline(plane, True, request_id="x", resume=resume)
        assert len(plane.engine.submitted) == 1


async def test_can_06_very_short_deadlines_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    script = [*b"0123456789" * 20]
    async with scripted_control_plane(script=script) as plane:
        plane.join_worker(max_model_len=400)
        spec = {"text": "Hi", "stopping": pb.StoppingParams(max_tokens=200)}
        steady = [asyncio.ensure_future(plane.events(**spec)) for _ in range(8)]
        codes = set()

        async def one_short(number: int) -> None:
            try:
                await call(plane, 0.0001 * 2.0 ** (number % 10), number % 3 == 0, **spec)  # up to 50 ms: some begin, a few end
                codes.add(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())

        for first in range(0, 1000, 64):
            await asyncio.gather(*(one_short(number) for number in range(first, min(first + 64, 1000))))
        assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK}
        for events in await asyncio.gather(*steady):
            assert "".join(event.delta.text for event in events) == bytes(script).decode()
        await until(lambda: not len(plane.live) and not plane.live._streams and not plane.limit.num_waiting)
        assert Failure.DEADLINE_EXCEEDED in plane.engine.ended.values()
        assert not plane.calls._calls[("Generate", "internal")] + plane.calls._calls[("GenerateStream", "internal")]
        assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def test_ops_07_a_jump_of_the_wall_clock_is_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.time, "time", lambda: 1e12)
    assert not Deadline(60.0).has_passed
    assert not Deadline(None).has_passed
    assert Deadline(0.0).has_passed
