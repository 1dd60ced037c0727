"""More calls than the clients' event loop carries: they are refused by us, early, and say when to come back."""

import asyncio
import time
from collections import Counter
from dataclasses import replace

import grpc.aio
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane, served_model
from fakes.text.tokenizers import BlockedTokenizer

from control_plane.edge.metrics.recorders import CallRecorder
from control_plane.edge.service.errors import ResourceExhausted
from control_plane.edge.service.overload import LoopLag
from control_plane.engine.options import EngineOptions
from pypto_serving.inference.v1 import inference_pb2 as pb


class SteadyLag(LoopLag):
    """Stays as late as it was made."""

    def __init__(self, seconds: float) -> None:
        super().__init__(CallRecorder([]))
        self.seconds = seconds


async def refusal(plane: ScriptedControlPlane, **spec: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plane.generate(**spec)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return caught.value


async def test_a_burst_of_calls_is_answered_by_us_and_not_dropped_by_grpc() -> None:
    async with scripted_control_plane() as plane:
        calls = [plane.stub.GetServer(pb.GetServerRequest()) for _ in range(3000)]
        for _ in range(100):
            await asyncio.sleep(0)
            time.sleep(0.005)  # the loop is busy, and the calls arrive meanwhile
        codes = Counter([await call.code() for call in calls])
    assert codes == {grpc.StatusCode.OK: 3000}


async def test_a_full_queue_refuses_a_text_before_it_is_tokenized() -> None:
    tokenizer = BlockedTokenizer()
    tokenizer.go_on.set()
    model = replace(served_model(), tokenizer=tokenizer)
    async with scripted_control_plane(model=model, options=EngineOptions(max_queued_requests=3)) as plane:
        plane.engine.snapshot = replace(plane.engine.snapshot, num_waiting_for_capacity=3, retry_after_seconds=2.5)
        error = await refusal(plane, text="x" * 2000)
        assert error.details() == "queue is full: 3 sequences wait or are about to, 1 would come, limit 3; retry in 2.5 s"
        assert dict(error.trailing_metadata())["retry-after-ms"] == "2500"
        plane.engine.snapshot = replace(plane.engine.snapshot, num_waiting_for_capacity=1, num_waiting_tokens=10_000_000)
        assert (await refusal(plane, text="x" * 2000)).details().startswith("queue is full: 10000000 tokens wait, limit 10000000")
    assert tokenizer.num_long_texts == 0


async def test_requests_that_are_being_tokenized_keep_their_places() -> None:
    tokenizer = BlockedTokenizer()
    model = replace(served_model(), tokenizer=tokenizer)
    async with scripted_control_plane(model=model, options=EngineOptions(max_queued_requests=3)) as plane:
        plane.join_worker(max_model_len=4000)
        await asyncio.sleep(0.2)
        spec = {"text": "x" * 2000, "stopping": pb.StoppingParams(max_tokens=5)}
        first = [asyncio.ensure_future(plane.generate(**spec)) for _ in range(2)]
        while tokenizer.num_long_texts < 2:
            await asyncio.sleep(0.005)
        error = await refusal(plane, n=2, **spec)
        assert "2 sequences wait or are about to, 2 would come, limit 3" in error.details()
        tokenizer.go_on.set()
        await asyncio.gather(*first)
        await plane.generate(n=1, **spec)


async def test_a_late_loop_refuses_new_calls_and_counts_them() -> None:
    async with scripted_control_plane() as plane:
        plane.lag.observe(3.0)
        error = await refusal(plane, text="Hi")
        assert error.details() == "the server is overloaded: it runs 3.0 s late, limit 1 s; retry in 6.0 s"
        assert dict(error.trailing_metadata())["retry-after-ms"] == "6000"
        plane.lag.seconds = 0.0
        await plane.generate(text="Hi")
    (refused,) = [family for family in plane.calls.families() if family.name.endswith("late_refusals")]
    assert refused.samples[0].value == 1


async def test_streams_write_less_often_while_the_loop_is_late() -> None:
    script = [*b"0123456789" * 20]
    async with scripted_control_plane(script) as plane:
        plane.join_worker(max_model_len=400)
        spec = {"text": "Hi", "stopping": pb.StoppingParams(max_tokens=200)}
        plane.lag.pace = SteadyLag(0.1).pace  # type: ignore[method-assign]
        events = await plane.events(**spec)
    assert "".join(event.delta.text for event in events) == bytes(script).decode()
    assert len(events) < 50


def test_lag_is_forgotten_within_a_few_looks() -> None:
    lag = LoopLag(CallRecorder([]))
    lag.observe(8.0)
    for _ in range(3):
        with pytest.raises(ResourceExhausted):
            lag.require_room()
        lag.observe(0.0)
    lag.require_room()
