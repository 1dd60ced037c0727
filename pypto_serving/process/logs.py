"""Logs: one line per event on standard error; text on a terminal, JSON otherwise. Prompts and output are never logged."""

import hashlib
import json
import logging
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from pypto_serving.process.start_up import OUR_PACKAGES

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_GRPC = "grpc._cython.cygrpc"

_MAX_LINES = 10_000
_FLUSH_SECONDS = 1.0

#: Lines that come within it wake the log's thread once: each time whoever logs waits for it to have had its turn.
_GATHER_SECONDS = 0.01

_ERASE = "\r\x1b[K"  # of a terminal: the line


def open_standard_streams() -> None:
    """Open the null device in place of standard streams that are closed; before anything else takes their descriptors.

    A socket that had one of them would get what libraries write to standard error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  as long as the process


def configure(log_format: str, level: str, **fields: str) -> None:
    """Send the root logger to standard error. `log_format`: auto, text or json; `level`: debug, info, warning or error.

    `fields` stand in every line. Text has colours on a terminal, unless NO_COLOR is set in the environment (https://no-color.org).
    """

    def add_fields(record: logging.LogRecord) -> bool:
        vars(record).update(fields)
        return True

    is_terminal = sys.stderr.isatty()
    as_text = log_format == "text" or (log_format == "auto" and is_terminal)
    has_colours = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler = LineWriter(sys.stderr, is_terminal=is_terminal and as_text)
    handler.setFormatter(_TextFormatter(has_colours) if as_text else _JsonFormatter())
    handler.addFilter(_is_of_use)
    handler.addFilter(add_fields)
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """Log from a level on: debug, info, warning or error."""
    logging.getLogger().setLevel("INFO" if level == "debug" else level.upper())
    for package in OUR_PACKAGES:  # what libraries say for debugging, gRPC a line for each look at its loop, is for their authors
        logging.getLogger(package).setLevel(logging.DEBUG if level == "debug" else logging.NOTSET)


def current_level() -> str:
    """The level from which on is logged."""
    return logging.getLevelName(logging.getLogger(OUR_PACKAGES[0]).getEffectiveLevel()).lower()


def show_below(text: str) -> bool:
    """Show a line below the log that the next call changes; empty text takes it away, before whatever others write then.

    Returns whether there is a terminal for it.
    """
    writers = [handler for handler in logging.getLogger().handlers if isinstance(handler, LineWriter) and handler.is_terminal]
    for writer in writers:
        writer.show_below(text)
        if not text:
            writer.flush()
    return bool(writers)


def _is_of_use(record: logging.LogRecord) -> bool:
    """All but a traceback of gRPC about a status that it could not send: the call has ended in that very moment, for its peer has gone."""
    kind = record.exc_info[0] if record.exc_info else None
    return record.name != _GRPC or kind is None or kind.__name__ != "ExecuteBatchError"


class LineWriter(logging.Handler):
    """Writes lines on a thread of its own: a pipe that nobody reads stops nobody who logs.

    At most `max_lines` wait; what comes then is dropped, and counted in a line of its own as soon as there is room again.
    """

    def __init__(self, stream: TextIO, max_lines: int = _MAX_LINES, is_terminal: bool = False) -> None:
        """`is_terminal`: a line can be shown below the others."""
        super().__init__()
        self.is_terminal = is_terminal
        self._stream = stream
        self._below = ""
        self._max_lines = max_lines
        self._lines: queue.SimpleQueue[logging.LogRecord | str | threading.Event] = queue.SimpleQueue()
        self._num_dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record, whose arguments must not change any more; never waits."""
        if self._lines.qsize() < self._max_lines:
            self._lines.put(record)
        else:
            self._num_dropped += 1

    def show_below(self, text: str) -> None:
        """Show a line that changes; never waits."""
        if self._lines.qsize() < self._max_lines:
            self._lines.put(text)

    def flush(self) -> None:
        """Wait until everything is written, but only for a moment."""
        is_written = threading.Event()
        self._lines.put(is_written)
        is_written.wait(_FLUSH_SECONDS)

    def close(self) -> None:
        """Write what is left, as far as somebody reads it."""
        self.flush()
        super().close()

    def _write_all(self) -> None:
        while True:
            entry = self._lines.get()
            if isinstance(entry, threading.Event):
                entry.set()
                continue
            with suppress(Exception):  # a closed standard error, or a record that cannot be formatted: nobody is left to be told
                self._write(entry)
                if (dropped := self._num_dropped) and self._lines.qsize() <= self._max_lines // 2:
                    self._num_dropped -= dropped
                    fields = {"lines": dropped, "msg": "log lines dropped, as nobody read them in time", "levelno": logging.WARNING}
                    self._write(logging.makeLogRecord({**fields, "name": __name__, "levelname": "WARNING"}))
            if self._lines.empty():
                time.sleep(_GATHER_SECONDS)

    def _write(self, entry: logging.LogRecord | str) -> None:
        erased = _ERASE if self._below else ""
        if isinstance(entry, str):
            self._below, line = entry, entry
        else:
            line = f"{self.format(entry)}\n{self._below}"
        self._write_text(erased + line)

    def _write_text(self, line: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):  # no file
            self._stream.write(line)
            return
        # Past the stream's buffer, whose lock would be held at the end of the process by a thread that waits for a reader.
        data = line.encode(errors="backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller passed as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


class _TextFormatter(logging.Formatter):
    """12:34:56 INFO    worker.service.server: serving address=127.0.0.1:50061"""

    default_msec_format = "%s.%03d"

    def __init__(self, has_colours: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")
        self._has_colours = has_colours

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Append the extra fields as key=value."""
        line = super().formatMessage(record)
        fields = "".join(f" {key}={_short(key, value)}" for key, value in _fields(record).items())
        if not self._has_colours:
            return line + fields
        level = f"{record.levelname:<7}"
        return line.replace(level, f"{_COLOURS.get(record.levelname, '')}{level}{_PLAIN}", 1) + (
            f"{_DIM}{fields}{_PLAIN}" if fields else ""
        )


_PLAIN, _DIM = "\x1b[0m", "\x1b[2m"
_COLOURS = {"DEBUG": "\x1b[36m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}


def _short(key: str, value: object) -> object:
    """A value for people: of a numerics id, which is long, 8 digits of its SHA-256, which tell two of them apart."""
    return hashlib.sha256(str(value).encode()).hexdigest()[:8] if key == "numerics_id" and value else value


#: Made once: `json.dumps` would make one for each line.
_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False)


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record with its extra fields; a traceback becomes one string."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return _ENCODER.encode(entry)
