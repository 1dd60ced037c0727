"""The way from the engine's thread to a call."""

import asyncio

import grpc.aio
import pytest
from fakes.text.tokenizers import byte_tokenizer

from control_plane.core.sampling import SamplingParams
from control_plane.edge.config import StreamOptions
from control_plane.edge.service.errors import Aborted, AlreadyExists, Cancelled, Deadline, ReaderTooSlow, Unavailable
from control_plane.edge.service.request_stream import Backlog, RequestStream
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.edge.service.responses import DeltaGatherer, ResponseBuilder
from control_plane.edge.text.text_stream import SequenceTextStream, TextRules
from control_plane.engine.ports import (
    ChoiceSpec,
    Failure,
    FinishReason,
    GenerationRequest,
    RequestFailed,
    SequenceDelta,
    SequenceFinished,
)
from pypto_serving.inference.v1 import inference_pb2 as pb


class SilentEngine:
    """Takes requests and does nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def submit(self, request: GenerationRequest) -> None:
        pass

    def hold(self, request_id: str) -> None:
        self.calls.append(("hold", request_id))

    def unhold(self, request_id: str) -> None:
        self.calls.append(("unhold", request_id))

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        self.calls.append(("end", request_id, failure))


def request(request_id: str = "x", takes_over: bool = False) -> GenerationRequest:
    text = SequenceTextStream(byte_tokenizer().detokenizer([1], True), TextRules())
    return GenerationRequest(
        request_id, b"key", [1], [ChoiceSpec(0, SamplingParams(), text)], 9, 0, frozenset(), 0.0, takes_over=takes_over
    )


def delta(index: int) -> SequenceDelta:
    return SequenceDelta("x", 0, index, [index], str(index))


FINISHED = SequenceFinished("x", 0, FinishReason.LENGTH, None, 1, 3, 0, 0, 0.0, 0.0, 0.0)


async def test_output_piles_up_while_the_call_is_slow_and_leaves_as_one_delta() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    for output in (delta(0), delta(1), delta(2), FINISHED):
        stream.put(output)
    gatherer = DeltaGatherer(ResponseBuilder(byte_tokenizer()), pb.OutputOptions(stream_interval=1))
    first, last = gatherer.events(await stream.next_outputs())
    assert (first.delta.text, list(first.delta.token_ids), last.finished.usage.completion_tokens) == ("012", [0, 1, 2], 3)
    assert await stream.next_outputs() == []


async def test_what_piles_up_is_joined_and_leaves_in_messages_of_bounded_size() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    for index in range(5000):
        stream.put(delta(index))
    outputs = await stream.next_outputs()
    assert len(outputs) < 150
    events = list(DeltaGatherer(ResponseBuilder(byte_tokenizer()), pb.OutputOptions(stream_interval=1)).events(outputs))
    assert [token_id for event in events for token_id in event.delta.token_ids] == [*range(5000)]
    assert max(len(event.delta.token_ids) for event in events) < 1200


async def test_the_whole_output_is_waited_for() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    whole = asyncio.ensure_future(stream.all_outputs())
    stream.put(delta(0))
    await asyncio.sleep(0)
    assert not whole.done()
    stream.put(FINISHED)
    assert await whole == [delta(0), FINISHED]


async def test_tokens_count_until_they_are_written() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    for index in range(5):
        stream.put(delta(index))
    await stream.next_outputs()
    stream.put(delta(5))
    stream.mark_written(3)
    assert stream.backlog.num_tokens == 3
    await stream.next_outputs()  # the other two were gathered for a larger message
    assert stream.backlog.num_tokens == 1
    stream.mark_written(3)
    assert stream.backlog.num_tokens == 0


async def test_a_failure_is_raised_to_the_call() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    stream.put(RequestFailed("x", Failure.ABORTED, "lost three workers"))
    with pytest.raises(Aborted, match="three workers"):
        await stream.next_outputs()


async def test_output_before_a_failure_is_not_lost() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    for output in (delta(0), delta(1), RequestFailed("x", Failure.ABORTED, "lost three workers")):
        stream.put(output)
    assert await stream.next_outputs() == [delta(0), delta(1)]
    with pytest.raises(Aborted, match="three workers"):
        await stream.next_outputs()


async def test_output_of_a_pass_arrives_from_another_thread() -> None:
    live = RequestStreams(asyncio.get_running_loop(), SilentEngine())
    async with live.open(request(), Deadline(None)) as stream:
        await asyncio.to_thread(live.publish, [delta(0), FINISHED])
        assert await stream.next_outputs() == [delta(0), FINISHED]
        assert len(live) == 1
    assert len(live) == 0


async def test_leaving_early_aborts_and_the_id_stays_taken_until_the_engine_has_forgotten_it() -> None:
    live = RequestStreams(asyncio.get_running_loop(), engine := SilentEngine())
    async with live.open(request(), Deadline(None)):
        pass
    assert engine.calls == [("end", "x", Failure.CANCELLED)]
    with pytest.raises(AlreadyExists):
        async with live.open(request(), Deadline(None)):
            pass
    live._deliver([RequestFailed("x", Failure.CANCELLED, "aborted")])
    async with live.open(request(), Deadline(None)):
        assert len(live) == 1


@pytest.mark.parametrize(
    ("error", "seconds", "failure"),
    [
        (asyncio.CancelledError(), None, Failure.CANCELLED),
        (asyncio.CancelledError(), 60.0, Failure.CANCELLED),
        (asyncio.CancelledError(), 0.0, Failure.DEADLINE_EXCEEDED),
        (grpc.aio.InternalError("no connection"), None, Failure.CANCELLED),
        (Unavailable("drain"), None, Failure.UNAVAILABLE),
        (ReaderTooSlow("slow"), 0.0, Failure.READER_TOO_SLOW),
        (ZeroDivisionError(), None, Failure.INTERNAL),
    ],
)
async def test_the_engine_learns_why_a_call_has_ended(error: BaseException, seconds: float | None, failure: Failure) -> None:
    live = RequestStreams(asyncio.get_running_loop(), engine := SilentEngine())
    with pytest.raises(type(error)):
        async with live.open(request(), Deadline(seconds)):
            raise error
    assert engine.calls == [("end", "x", failure)]


async def test_an_interrupt_waits_for_the_block_that_it_may_end() -> None:
    stream = RequestStream(request(), Backlog(None, pytest.fail, pytest.fail))
    stream.interrupt(Cancelled("taken over"))
    await asyncio.sleep(0)
    with pytest.raises(Cancelled, match="taken over"):
        async with stream.interruptible():
            raise AssertionError("the block has begun")


async def test_a_successor_is_not_let_go_by_the_stream_it_replaced() -> None:
    live = RequestStreams(asyncio.get_running_loop(), engine := SilentEngine(), StreamOptions(max_unwritten_tokens=2))
    async with live.open(request(), Deadline(None), waits_for_client=True) as old:
        live._deliver([delta(0), delta(1), delta(2)])
        assert engine.calls == [("hold", "x")]
        live._deliver([RequestFailed("x", Failure.CANCELLED, "taken over")])
        await old.next_outputs()
        with pytest.raises(Cancelled):
            await old.next_outputs()
        assert engine.calls == [("hold", "x")]


async def test_two_takeovers_at_once_follow_each_other() -> None:
    live = RequestStreams(asyncio.get_running_loop(), SilentEngine())
    order = []

    async def take_over(name: str) -> None:
        with pytest.raises(Cancelled):
            async with live.open(request(takes_over=True), Deadline(None)) as stream:
                order.append(name)
                await stream.next_outputs()

    tasks = [asyncio.ensure_future(take_over(name)) for name in "abc"]
    for _ in tasks:
        for _ in range(5):
            await asyncio.sleep(0)
        live._deliver([RequestFailed("x", Failure.CANCELLED, "gone")])
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_a_closed_server_takes_nothing_and_can_fail_everything() -> None:
    live = RequestStreams(asyncio.get_running_loop(), SilentEngine())
    async with live.open(request("y"), Deadline(None)) as stream:
        live.close()
        with pytest.raises(Unavailable):
            async with live.open(request("z"), Deadline(None)):
                pass
        live.fail_all("the end")
        with pytest.raises(Unavailable, match="the end"):
            await stream.next_outputs()
