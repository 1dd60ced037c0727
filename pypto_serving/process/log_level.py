"""From which level on a process logs, as operators change it while it runs."""

import logging
import threading
from collections.abc import Callable

from pypto_serving.log.v1 import log_pb2 as pb
from pypto_serving.process import logs
from pypto_serving.wire.checks import check_range

_log = logging.getLogger(__name__)

_MAX_MILLISECONDS = 86_400_000


class LogLevel:
    """Of this process, whose log has been configured. Any thread may change it."""

    def __init__(self, make_timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer) -> None:
        """`make_timer` gets seconds and what to call after them."""
        self._make_timer = make_timer
        self._at_start = self._lasting = logs.current_level()
        self._return: threading.Timer | None = None
        self._lock = threading.Lock()

    def change(self, change: pb.LevelChange) -> None:
        """Log from another level on, for some time or for good; raises FrameError for what is none."""
        check_level_change(change)
        is_passing = change.HasField("milliseconds")
        level = pb.Level.Name(change.level).removeprefix("LEVEL_").lower() if change.level else self._at_start
        with self._lock:
            if self._return:
                self._return.cancel()
            self._return = None
            if is_passing:
                timer = self._return = self._make_timer(change.milliseconds / 1000, lambda: self._go_back(timer))
                timer.daemon = True
                timer.start()
            else:
                self._lasting = level
            _set_level(level)

    def _go_back(self, timer: threading.Timer) -> None:
        with self._lock:
            if timer is self._return:  # else another change has come in this moment
                self._return = None
                _set_level(self._lasting)


def check_level_change(change: pb.LevelChange) -> None:
    """Raise FrameError naming field, value and limit."""
    check_range("change.level", change.level, 0, max(pb.Level.values()))
    if change.HasField("milliseconds"):
        check_range("change.milliseconds", change.milliseconds, 1, _MAX_MILLISECONDS)


def _set_level(level: str) -> None:
    """The line about it comes at the level that shows more."""
    facts = {"from_level": logs.current_level(), "to_level": level}
    is_quieter = logging.getLevelNamesMapping()[level.upper()] > logging.INFO
    if is_quieter:
        _log.info("log level", extra=facts)
    logs.set_level(level)
    if not is_quieter:
        _log.info("log level", extra=facts)
