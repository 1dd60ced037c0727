"""More calls than the clients' event loop carries: they are refused by us, early, and say when to come back."""

import asyncio
import time
from collections import Counter
from dataclasses import replace

import grpc.aio
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane, served_model
from fakes.text.tokenizers import BlockedTokenizer

from control_plane.edge.metrics.counts import CallCounts
from control_plane.edge.service.errors import ResourceExhausted
from control_plane.edge.service.overload import LoopLag
from control_plane.engine.options import EngineOptions
from pypto_serving.inference.v1 import inference_pb2 as pb


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
        plane.lag.observe(3.0, 3.0)
        error = await refusal(plane, text="Hi")
        assert error.details() == "the server is overloaded: it runs 3.0 s late, limit 1 s; retry in 6.0 s"
        metadata = dict(error.trailing_metadata())
        assert metadata["retry-after-ms"] == metadata["grpc-retry-pushback-ms"] == "6000"
        plane.lag.seconds = 0.0
        await plane.generate(text="Hi")
    (refused,) = [family for family in plane.calls.families() if family.name.endswith("late_refusals")]
    assert refused.samples[0].value == 1


@pytest.fixture
def lag() -> LoopLag:
    return LoopLag(CallCounts([]), max_window_seconds=0.05)


def is_refused(lag: LoopLag) -> bool:
    try:
        lag.require_room()
    except ResourceExhausted:
        return True
    return False


def test_lag_is_forgotten_within_a_few_looks(lag: LoopLag) -> None:
    lag.observe(8.0, 8.0)
    for _ in range(3):
        assert is_refused(lag)
        lag.observe(0.0, 0.0)
    assert not is_refused(lag)


def test_a_process_that_was_stopped_for_a_while_is_not_late(lag: LoopLag) -> None:
    lag.observe(30.0, 0.06)
    assert (is_refused(lag), lag.seconds) == (False, 0.06)
    lag.observe(0.0, 0.05)
    lag.observe(20.0, 0.06)
    assert not is_refused(lag)


def test_a_process_that_gets_no_time_again_and_again_is_late(lag: LoopLag) -> None:
    lag.observe(1.5, 0.1)
    assert not is_refused(lag)
    lag.observe(1.5, 0.1)
    assert is_refused(lag)


def windows(lag: LoopLag, *looks: tuple[float, float]) -> list[float]:
    """The window after each look at lateness and busy share."""
    seen = []
    for seconds, busy_share in looks:
        lag.observe(seconds, seconds)
        lag.adapt_window(busy_share)
        seen.append(lag.window_seconds)
    return seen


@pytest.mark.parametrize("look", [(0.0, 0.8), (0.01, 0.3)], ids=["busy", "late"])
def test_streams_gather_output_for_ever_longer_while_there_is_too_much_to_do(lag: LoopLag, look: tuple[float, float]) -> None:
    seen = windows(lag, *[look] * 20)
    assert (seen[0], seen[-1], seen == sorted(seen)) == (0.005, 0.05, True)


def test_the_window_stays_while_there_is_enough_to_do_and_goes_when_there_is_time(lag: LoopLag) -> None:
    grown = windows(lag, *[(0.0, 0.9)] * 4)[-1]
    assert windows(lag, *[(0.0, 0.6)] * 5) == [grown] * 5
    seen = windows(lag, *[(0.0, 0.2)] * 20)
    assert (seen[-1], seen == sorted(seen, reverse=True)) == (0.0, True)


def test_without_a_delay_nothing_is_gathered() -> None:
    assert windows(LoopLag(CallCounts([]), max_window_seconds=0.0), *[(0.1, 1.0)] * 3) == [0.0] * 3
