"""The way from the engine's thread to the calls, and whose an id is while one request takes another over."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import grpc.aio
import pytest
from fakes.control_plane.stream_doubles import FixedWindow, NotedEngine, PieceText, end_of, failed, make_output, make_request, tokens

from control_plane.core.step import TokenLogprob, ids
from control_plane.edge.config import StreamOptions
from control_plane.edge.service.call_recorder import CallRecorder
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.edge.service.errors import AlreadyExists, Cancelled, Deadline, InternalError, ReaderTooSlow, Unavailable
from control_plane.edge.service.request_stream import RequestStream
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.engine.ports import Failure, Outputs, PromptLogprobs
from pypto_serving.recording.recorder import Level, RecordingLimits, SpanRecorder

OPTIONS = StreamOptions(max_unwritten_tokens=2)


@pytest.fixture
def engine() -> NotedEngine:
    return NotedEngine()


@pytest.fixture
async def live(engine: NotedEngine) -> RequestStreams:
    return RequestStreams(asyncio.get_running_loop(), engine, FixedWindow(), OPTIONS)


@pytest.fixture
def tasks() -> Iterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()


def opened(
    live: RequestStreams, *outputs: ChoiceOutput, request_id: str = "x", seconds: float | None = None, waits: bool = False, **fields: object
) -> AbstractAsyncContextManager[RequestStream]:
    outputs = outputs or (make_output(),)
    return live.open(make_request(request_id, outputs, **fields), outputs, Deadline(seconds), waits)


def pending(stream: RequestStream) -> list[list[int]]:
    return [list(choice.token_ids) for choice in stream.choices]


async def test_output_of_a_pass_arrives_from_another_thread(live: RequestStreams) -> None:
    async with opened(live) as stream:
        await asyncio.to_thread(live.publish, tokens(0, 1, finished=end_of()))
        assert await stream.wait_output()
        assert (pending(stream), stream.ended.is_set(), len(live)) == ([[0, 1]], True, 1)
    assert len(live) == 0


async def test_columns_go_to_their_choices_and_what_is_nobodys_nowhere(live: RequestStreams) -> None:
    first, second, other = make_output(0), make_output(1), make_output(2)
    async with opened(live, first, second) as stream, opened(live, other, request_id="y"):
        columns = [(10, 1), (11, 2), (99, 3), (12, 4), (10, 5), (11, 6)]
        entries = [(0, TokenLogprob(1, -1.0)), (2, TokenLogprob(3, -3.0)), (3, TokenLogprob(4, -4.0)), (4, TokenLogprob(5, -5.0))]
        outputs = Outputs(logprobs=entries, numerics=[(11, "n"), (99, "n")])
        outputs.numbers.extend(number for number, _ in columns)
        outputs.token_ids.extend(token_id for _, token_id in columns)
        live.deliver(outputs)
        assert pending(stream) == [[1, 5], [2, 6]]
        assert list(other.token_ids) == [4]
        assert [entry.token_id for entry in first.logprobs] == [1, 5]
        told = [delta.numerics_id for choice in (first, second) if (delta := choice.take(1, 9))]
        assert told == ["", "n"]


async def test_log_probabilities_of_a_prompt_go_to_its_request(live: RequestStreams) -> None:
    async with opened(live) as stream:
        entries = PromptLogprobs("x", [[TokenLogprob(1, None)]])
        live.deliver(Outputs(accepted=["x", "gone"], prompt_logprobs=[entries, PromptLogprobs("gone", [])]))
        await stream.wait_accepted()
        assert await stream.wait_output()
        assert stream.prompt_logprobs is entries


async def test_stop_03_a_stop_string_ends_its_choice_at_the_engine_once_and_the_others_go_on(
    live: RequestStreams, engine: NotedEngine
) -> None:
    async with opened(live, make_output(0, stop=("<5>",)), make_output(1)) as stream:
        live.deliver(tokens(4, 5, 6))
        live.deliver(tokens(7))
        live.deliver(tokens(5, 5, number=11))
        assert engine.calls == [("finish", 10)]
        assert (pending(stream), stream.ended.is_set()) == ([[4, 5], [5, 5]], False)
        live.deliver(tokens(finished=end_of(count=4)))
        live.deliver(tokens(finished=end_of(number=11)))
        assert stream.ended.is_set()


async def test_a_choice_that_has_ended_already_is_not_finished_again(live: RequestStreams, engine: NotedEngine) -> None:
    async with opened(live, make_output(stop=("<5>",))) as stream:
        live.deliver(tokens(4, 5, finished=end_of(count=2)))
        assert (engine.calls, stream.ended.is_set()) == ([], True)


async def test_broken_text_ends_its_request_only_and_once(live: RequestStreams, engine: NotedEngine) -> None:
    text = PieceText(stop=("never",), broken_at=5)
    async with opened(live, make_output(text=text)) as broken, opened(live, make_output(1), request_id="y") as other:
        live.deliver(Outputs(numbers=ids([10, 11]), token_ids=ids([5, 6])))
        live.deliver(tokens(5))
        assert engine.calls == [("end", "x", Failure.INTERNAL)]
        assert pending(other) == [[6]]
        live.deliver(failed(Failure.INTERNAL, "internal error"))
        with pytest.raises(InternalError):
            await broken.wait_end()


async def test_leaving_early_ends_and_the_id_stays_taken_until_the_engine_has_forgotten_it(
    live: RequestStreams, engine: NotedEngine
) -> None:
    async with opened(live):
        pass
    assert engine.calls == [("end", "x", Failure.CANCELLED)]
    with pytest.raises(AlreadyExists):
        async with opened(live):
            pass
    live.deliver(failed(Failure.CANCELLED, "aborted"))
    async with opened(live):
        assert len(live) == 1
    live.deliver(failed(Failure.CANCELLED, "aborted"))
    assert (live._streams, live._receivers) == ({}, {})


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
async def test_the_engine_learns_why_a_call_has_ended(
    live: RequestStreams, engine: NotedEngine, error: BaseException, seconds: float | None, failure: Failure
) -> None:
    with pytest.raises(type(error)):
        async with opened(live, seconds=seconds):
            raise error
    assert engine.calls == [("end", "x", failure)]


async def test_a_slow_reader_is_held_and_let_go(live: RequestStreams, engine: NotedEngine) -> None:
    async with opened(live, waits=True) as stream:
        live.deliver(tokens(0, 1))
        assert engine.calls == []
        live.deliver(tokens(2))
        assert engine.calls == [("hold", "x")]
        stream.choices[0].take(1, 2)
        stream.mark_in_write(2)
        assert engine.calls == [("hold", "x")]
        stream.choices[0].take(1, 2)
        stream.mark_in_write(0)
        assert engine.calls == [("hold", "x"), ("unhold", "x")]


async def test_a_successor_is_not_let_go_by_the_stream_it_replaced(live: RequestStreams, engine: NotedEngine) -> None:
    async with opened(live, waits=True) as old:
        live.deliver(tokens(0, 1, 2))
        live.deliver(failed(Failure.CANCELLED, "taken over"))
        assert await old.wait_output()
        old.choices[0].take(1, 9)
        old.mark_in_write(0)
        with pytest.raises(Cancelled):
            await old.wait_output()
        assert engine.calls == [("hold", "x")]


async def test_two_takeovers_at_once_follow_each_other(live: RequestStreams) -> None:
    order = []

    async def take_over(name: str) -> None:
        with pytest.raises(Cancelled):
            async with opened(live, takes_over=True) as stream:
                order.append(name)
                await stream.wait_end()

    tasks = [asyncio.ensure_future(take_over(name)) for name in "abc"]
    for _ in tasks:
        for _ in range(5):
            await asyncio.sleep(0)
        live.deliver(failed(Failure.CANCELLED, "gone"))
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_a_closed_server_takes_nothing_and_can_fail_everything(live: RequestStreams) -> None:
    async with opened(live, request_id="y") as stream:
        live.close()
        with pytest.raises(Unavailable):
            async with opened(live, request_id="z"):
                pass
        live.fail_all("the end")
        assert await stream.wait_output()
        with pytest.raises(Unavailable, match="the end"):
            await stream.wait_output()


async def test_an_abort_that_nobody_answers_is_unavailable(live: RequestStreams, engine: NotedEngine) -> None:
    async def abort(request_id: str) -> bool:
        raise TimeoutError("no scheduler within 30 s")

    engine.abort = abort
    with pytest.raises(Unavailable, match="no scheduler within 30 s"):
        await live.abort("x")


async def test_an_abort_is_the_engines(live: RequestStreams, engine: NotedEngine) -> None:
    assert not await live.abort("somewhere else")
    assert engine.calls == [("abort", "somewhere else")]


async def _call(live: RequestStreams, **fields: object) -> None:
    async with opened(live, **fields):
        await asyncio.Event().wait()


async def test_a_stranger_cannot_take_an_id_between_two_take_overs(
    live: RequestStreams, engine: NotedEngine, tasks: list[asyncio.Task[None]]
) -> None:
    tasks.append(asyncio.create_task(_call(live)))
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(_call(live, takes_over=True, max_tokens=number)) for number in (1, 2)]
    await asyncio.sleep(0)
    live.publish(failed(Failure.CANCELLED, "taken over"))
    stranger = asyncio.create_task(_call(live, resume_key=b"another"))  # its turn comes before that of those who wait
    with pytest.raises(AlreadyExists, match="request_id 'x' is in use"):
        await stranger
    assert [request.max_tokens for request in engine.submitted[1:]] == [1]
    live.publish(failed(Failure.CANCELLED, "taken over"))
    await asyncio.sleep(0.01)
    assert [request.max_tokens for request in engine.submitted[1:]] == [1, 2]


async def test_an_id_is_free_again_when_those_who_would_take_it_over_leave(
    live: RequestStreams, engine: NotedEngine, tasks: list[asyncio.Task[None]]
) -> None:
    tasks.append(asyncio.create_task(_call(live)))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(_call(live, takes_over=True))
    await asyncio.sleep(0)
    live.publish(failed(Failure.CANCELLED, "taken over"))
    asyncio.get_running_loop().call_soon(leaving.cancel)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert live._streams == {}
    tasks.append(asyncio.create_task(_call(live, resume_key=b"another")))
    await asyncio.sleep(0)
    assert engine.submitted[-1].resume_key == b"another"


def recorded() -> SpanRecorder:
    return SpanRecorder("a", RecordingLimits(Level.STEPS, 60.0, 100))


def outcomes(recorder: SpanRecorder) -> list[tuple[str, str]]:
    return [(span.labels["request_id"], span.labels["outcome"]) for span in recorder.spans() if span.name == "call"]


async def test_a_recording_has_each_call_once_whichever_of_its_ends_comes_first(live: RequestStreams) -> None:
    """A call and the engine's request end one after the other, in either order, and the recording between them."""
    recorder = recorded()
    live.record(recorder)
    async with opened(live, make_output(0), request_id="left early"):
        pass  # the engine has not heard of it yet
    async with opened(live, make_output(1), request_id="writes on") as stream:
        live.deliver(tokens(0, number=11, finished=end_of(number=11)))
        assert stream.ended.is_set()
        live.record(None)
    assert outcomes(recorder) == [("left early", "ended"), ("writes on", "goes on")]


class TakenAway(RequestStreams):
    """A recording that ends, on the engine's thread, between any two looks at who records."""

    _seen: CallRecorder | None = None

    @property
    def _recorder(self) -> CallRecorder | None:
        seen, self._seen = self._seen, None
        return seen

    @_recorder.setter
    def _recorder(self, recorder: CallRecorder | None) -> None:
        self._seen = recorder


async def test_a_call_ends_in_good_order_while_its_recording_does(engine: NotedEngine) -> None:
    live, recorder = TakenAway(asyncio.get_running_loop(), engine, FixedWindow(), OPTIONS), recorded()
    async with opened(live) as stream:
        live._recorder = CallRecorder(recorder)
    assert outcomes(recorder) == [("x", "ended")]
    assert stream.backlog._is_closed and engine.calls == [("end", "x", Failure.CANCELLED)]


class Gone:
    """Whatever is asked of it raises."""

    def __getattr__(self, name: str) -> object:
        raise LookupError(name)


async def test_a_recording_that_fails_ends_and_costs_no_call(live: RequestStreams, engine: NotedEngine, caplog) -> None:
    recorder = recorded()
    live.record(recorder)
    for request_id in ("x", "y"):
        async with opened(live, make_output(len(engine.calls)), request_id=request_id) as stream:
            stream.request = Gone() if request_id == "x" else stream.request
    assert [call[0] for call in engine.calls] == ["end", "end"] and len(live) == 0
    assert (list(recorder.spans()), recorder.notes) == ([], ["it ends early, as it has failed: LookupError: arrival_time"])
    assert len([record for record in caplog.records if "a recording has failed" in record.message]) == 1
