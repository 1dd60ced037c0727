"""What observes an engine may fail at every word: requests, and whoever else observes, notice nothing."""

import inspect

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import solo

from control_plane.engine.ports import Failure
from control_plane.engine.tracer import EngineTracer

CALLS = [name for name, _ in inspect.getmembers(EngineTracer, inspect.isfunction) if not name.startswith("_") and name != "failed"]


class Noting(EngineTracer):
    """Notes which calls it hears; raises at some, after it has noted them."""

    def __init__(self, raises_at: tuple[str, ...] = ()) -> None:
        self.heard: list[str] = []
        self.errors: list[Exception] = []
        for name in CALLS:
            setattr(self, name, lambda *told, name=name: self._hear(name, name in raises_at))

    def _hear(self, name: str, raises: bool) -> None:
        self.heard.append(name)
        if raises:
            raise ValueError(name)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


def run(bench: Bench) -> None:
    bench.submit("r", max_tokens=6)
    bench.submit("ended", max_tokens=60)
    bench.run(3)
    bench.end("ended", Failure.CANCELLED)
    bench.run()


@pytest.mark.parametrize("name", CALLS)
def test_a_failure_costs_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    bench, broken, beside = Bench(), Noting((name,)), Noting()
    bench.engine.tracers.add(broken)
    bench.engine.tracers.add(beside)
    run(bench)
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 6)
    assert set(bench.front_end.failed) == {"ended"} and bench.engine.state().snapshot.healthy
    assert broken.heard == beside.heard and set(beside.heard) == set(CALLS)
    assert [str(error) for error in broken.errors] == [name] * beside.heard.count(name)
    assert len(caplog.records) == 1  # not one for each pass
    bench.assert_at_rest()


def test_who_was_removed_hears_nothing() -> None:
    bench, gone, stays = Bench(), Noting(), Noting()
    for tracer in (gone, stays):
        bench.engine.tracers.add(tracer)
    bench.engine.tracers.remove(gone)
    run(bench)
    assert not gone.heard and stays.heard
