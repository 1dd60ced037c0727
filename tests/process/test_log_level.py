import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pypto_serving.log.v1 import log_pb2 as pb
from pypto_serving.process import logs
from pypto_serving.process.log_level import LogLevel
from pypto_serving.process.start_up import OUR_PACKAGES
from pypto_serving.wire.checks import FrameError


class Timers:
    """Of which none ends by itself."""

    def __init__(self) -> None:
        self.made: list[Timer] = []

    def __call__(self, seconds: float, function: Callable[[], None]) -> threading.Timer:
        self.made.append(Timer(seconds, function))
        return self.made[-1]


class Timer(threading.Timer):
    def start(self) -> None:
        """No thread."""

    @property
    def is_cancelled(self) -> bool:
        return self.finished.is_set()


@pytest.fixture
def started_with_warning() -> Iterator[None]:
    """A process that was started with --log-level warning."""
    former = logging.getLogger().level
    logs.set_level("warning")
    yield
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)
    logging.getLogger().setLevel(former)


@pytest.fixture
def level(started_with_warning: None) -> LogLevel:
    return LogLevel()


def until(wanted: str) -> None:
    deadline = time.monotonic() + 10
    while logs.current_level() != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_it_changes_and_goes_back_to_what_it_was_started_with(level: LogLevel) -> None:
    level.change(pb.LevelChange(level=pb.LEVEL_DEBUG))
    assert logs.current_level() == "debug" and logging.getLogger("worker.x").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("grpc").isEnabledFor(logging.DEBUG)
    level.change(pb.LevelChange())
    assert logs.current_level() == "warning"


def test_a_change_for_some_time_ends_with_the_last_one_that_stays(level: LogLevel) -> None:
    level.change(pb.LevelChange(level=pb.LEVEL_ERROR))
    level.change(pb.LevelChange(level=pb.LEVEL_DEBUG, milliseconds=60_000))
    level.change(pb.LevelChange(level=pb.LEVEL_INFO, milliseconds=1))
    until("error")


def test_a_change_that_stays_ends_one_for_some_time(started_with_warning: None) -> None:
    timers = Timers()
    level = LogLevel(timers)
    level.change(pb.LevelChange(level=pb.LEVEL_DEBUG, milliseconds=20))
    level.change(pb.LevelChange(level=pb.LEVEL_INFO))
    [timer] = timers.made
    assert timer.interval == 0.02 and timer.is_cancelled and logs.current_level() == "info"


def test_a_timer_that_ends_while_another_change_comes_changes_nothing(started_with_warning: None) -> None:
    timers = Timers()
    level = LogLevel(timers)
    for wanted in (pb.LEVEL_DEBUG, pb.LEVEL_INFO):
        level.change(pb.LevelChange(level=wanted, milliseconds=20))
    late, last = timers.made
    late.function()
    assert logs.current_level() == "info"
    last.function()
    assert logs.current_level() == "warning"


def test_what_shows_least_is_told_before_and_what_shows_more_after(level: LogLevel, caplog: pytest.LogCaptureFixture) -> None:
    for wanted in (pb.LEVEL_INFO, pb.LEVEL_ERROR):
        level.change(pb.LevelChange(level=wanted))
    told = [vars(record) for record in caplog.records if record.getMessage() == "log level"]
    assert [(entry["from_level"], entry["to_level"]) for entry in told] == [("warning", "info"), ("info", "error")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pb.LevelChange(level=9), "change.level: 9, must be from 0 to 4"),  # type: ignore[arg-type]  # of a later version
        (pb.LevelChange(milliseconds=0), "change.milliseconds: 0, must be from 1"),
        (pb.LevelChange(milliseconds=86_400_001), "change.milliseconds: 86400001, must be from 1"),
    ],
)
def test_what_is_no_change_is_refused(level: LogLevel, change: pb.LevelChange, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        level.change(change)
    assert logs.current_level() == "warning"
