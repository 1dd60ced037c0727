"""The border between the clients' event loop and the engine's thread."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest
from fakes.engine_doubles import make_request

from control_plane.core.options import SchedulerOptions
from control_plane.edge.engine_thread import EngineSettings, EngineThread
from control_plane.edge.metrics.engine_recorder import EngineRecorder
from control_plane.edge.metrics.link_recorder import LinkRecorder
from control_plane.edge.worker_link.settings import LinkSettings
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Output


class Discard:
    def publish(self, outputs: Sequence[Output]) -> None:
        pass


@pytest.fixture
async def thread() -> AsyncIterator[EngineThread]:
    settings = EngineSettings(SchedulerOptions(), EngineOptions(), LinkSettings("ours", "model"), [], "127.0.0.1", 0)
    thread = EngineThread(settings, EngineRecorder(), LinkRecorder())
    await thread.start(Discard())
    yield thread
    await thread.stop()


async def test_a_call_returns_or_raises_what_its_function_does(thread: EngineThread) -> None:
    assert await thread.call(lambda engine: engine.gauges.num_running) == 0
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
    assert await thread.call(lambda engine: len(engine.snapshot(with_sequences=True).sequences)) == 0
