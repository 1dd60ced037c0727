"""The border between the clients' event loop and the engine's thread."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from fakes.control_plane.engine_doubles import make_choice, make_request
from fakes.text.tokenizers import END_THINK, EOS, byte_tokenizer

from control_plane.core.options import SchedulerOptions
from control_plane.edge.engine_thread import EngineThread, EngineThreadOptions
from control_plane.edge.metrics.counts import EngineCounts, LinkCounts
from control_plane.edge.text.constraint.compiler import ConstraintCompiler
from control_plane.edge.text.constraint.grammar import regex_grammar
from control_plane.edge.worker_link.options import LinkOptions
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, Outputs, RequestFailed
from control_plane.engine.snapshot import EngineSnapshot


class KeptFailures:
    """A front end that keeps how its requests failed."""

    def __init__(self) -> None:
        self.failed: list[RequestFailed] = []

    def publish(self, outputs: Outputs) -> None:
        self.failed += outputs.failed


def engine_thread() -> EngineThread:
    options = EngineThreadOptions(SchedulerOptions(), EngineOptions(), LinkOptions("ours", "model"), [], "127.0.0.1", 0)
    compiler = ConstraintCompiler(byte_tokenizer(), END_THINK + 1, frozenset({EOS}))
    return EngineThread(options, compiler, EngineCounts(), LinkCounts())


@pytest.fixture
def front_end() -> KeptFailures:
    return KeptFailures()


@pytest.fixture
async def thread(front_end: KeptFailures) -> AsyncIterator[EngineThread]:
    thread = engine_thread()
    await thread.start(front_end)
    yield thread
    await thread.stop()


@contextmanager
def blocked(thread: EngineThread) -> Iterator[None]:
    """While the engine's event loop does not turn."""
    entered, gate = threading.Event(), threading.Event()

    def block(engine: Engine) -> None:
        entered.set()
        gate.wait()

    thread._soon(block)
    entered.wait()
    try:
        yield
    finally:
        gate.set()


async def _until_failed(front_end: KeptFailures, count: int) -> None:
    while len(front_end.failed) < count:
        await asyncio.sleep(0.01)


async def test_an_engine_that_ends_fails_no_request_for_want_of_its_mask(front_end: KeptFailures) -> None:
    thread = engine_thread()
    await thread.start(front_end)
    with blocked(thread):
        thread.submit(make_request(grammar=regex_grammar("a+")))
        stopping = asyncio.create_task(thread.stop())
        await asyncio.sleep(0)
    await stopping
    assert not front_end.failed


async def test_a_request_can_be_held_let_go_and_ended(thread: EngineThread, front_end: KeptFailures) -> None:
    thread.submit(make_request())
    thread.hold("r")
    assert await thread.call(lambda engine: engine.state(with_sequences=True).sequences[0].is_held)
    thread.unhold("r")
    assert not await thread.call(lambda engine: engine.state(with_sequences=True).sequences[0].is_held)
    thread.end("r", Failure.DEADLINE_EXCEEDED, "too late")
    await _until_failed(front_end, 1)
    assert front_end.failed == [RequestFailed("r", Failure.DEADLINE_EXCEEDED, "too late")]


async def test_a_choice_can_be_finished(thread: EngineThread) -> None:
    request = make_request(choices=[make_choice(0), make_choice(1)])
    thread.submit(request)
    thread.finish(request.choices[0].number)
    assert [state.choice for state in await thread.call(lambda engine: engine.state(with_sequences=True).sequences)] == [1]


async def test_an_abort_says_whether_there_was_something_to_end(thread: EngineThread, front_end: KeptFailures) -> None:
    thread.submit(make_request())
    assert await thread.abort("r")
    assert not await thread.abort("r")
    await _until_failed(front_end, 1)
    assert front_end.failed[0].failure is Failure.CANCELLED


async def test_a_drain_refuses_what_comes(thread: EngineThread, front_end: KeptFailures) -> None:
    thread.drain()
    thread.submit(make_request())
    await _until_failed(front_end, 1)
    assert front_end.failed[0].failure is Failure.UNAVAILABLE


async def test_front_ends_may_live_on_the_engines_event_loop() -> None:
    served: list[Engine] = []

    @asynccontextmanager
    async def beside(engine: Engine) -> AsyncIterator[None]:
        served.append(engine)
        yield
        served.clear()

    thread, session = engine_thread(), KeptFailures()
    await thread.start(beside=beside)
    await thread.call(lambda engine: engine.submit(make_request(), session))
    assert await thread.call(lambda engine: served == [engine])
    assert await thread.abort("r")
    await _until_failed(session, 1)
    await thread.stop()
    assert not served


async def test_a_loop_that_does_not_turn_can_be_seen(thread: EngineThread) -> None:
    with blocked(thread):
        while thread.seconds_since_turn() < 0.5:
            await asyncio.sleep(0.01)
    while thread.seconds_since_turn() >= 0.5:
        await asyncio.sleep(0.01)


async def test_met_05_a_scrape_shows_this_moment(thread: EngineThread) -> None:
    await asyncio.to_thread(thread.take_snapshot)
    thread.submit(make_request())
    assert (await asyncio.to_thread(thread.take_snapshot)).num_waiting_for_worker == 1
    thread.end("r", Failure.CANCELLED, "aborted")
    assert (await asyncio.to_thread(thread.take_snapshot)).num_waiting_for_worker == 0


async def test_a_scrape_of_a_blocked_engine_shows_the_last_snapshot(thread: EngineThread) -> None:
    with blocked(thread):
        assert await asyncio.to_thread(thread.take_snapshot) == EngineSnapshot()


async def test_a_call_returns_or_raises_what_its_function_does(thread: EngineThread) -> None:
    assert await thread.call(lambda engine: engine.snapshot.num_running) == 0
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda engine: 1 / 0)


async def test_a_caller_that_goes_away_does_not_trouble_the_engine(thread: EngineThread, caplog: pytest.LogCaptureFixture) -> None:
    call = asyncio.ensure_future(thread.call(lambda engine: time.sleep(0.1)))
    await asyncio.sleep(0.02)
    call.cancel()
    assert await thread.call(lambda engine: 7) == 7
    assert not caplog.records


async def test_a_request_that_meets_a_closing_loop_is_dropped(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedJustNow:
        """Was open when it was asked."""

        def is_closed(self) -> bool:
            return False

        def call_soon_threadsafe(self, *arguments: object) -> None:
            raise RuntimeError("Event loop is closed")

    with monkeypatch.context() as patch:
        patch.setattr(thread, "_loop", ClosedJustNow())
        thread.submit(make_request())
    assert await thread.call(lambda engine: len(engine.state(with_sequences=True).sequences)) == 0
