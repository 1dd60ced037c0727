"""A process of the service, and what its log says."""

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from pypto_serving.process.lives import Lives
from pypto_serving.process.tied import tied_command

_MAX_LINE_BYTES = 16 << 20
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "critical": logging.CRITICAL}


class Child:
    """Belongs to one event loop. Its log has to be JSON; what it logs is logged here under its name.

    `serves_at`: message and beginnings of the logger's name that say that it serves.
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], serves_at: tuple[str, tuple[str, ...]], serves: Callable[[], object]
    ) -> None:
        self.name = name
        self.lives = Lives()
        self.last_line = ""  # that was no log: why it cannot start
        self._module = module
        self._arguments = list(arguments)
        self._serves_at = serves_at
        self._serves = serves
        self._process: asyncio.subprocess.Process | None = None
        self._is_starting = False
        self._early_signal: signal.Signals | None = None  # that came while it was starting

    async def live(self) -> int:
        """Run it once, until it has ended; returns its exit code. In a process group of its own: an interrupt is ours to pass on."""
        process = self._process = await self._start()
        if self._early_signal is not None:
            self.send(self._early_signal)
        try:
            assert process.stdout is not None
            await self._follow(process.stdout)
        except BaseException:
            process.kill()  # it would stand still as soon as the pipe is full
            raise
        finally:
            code = await process.wait()
            self._process = None
        return code

    async def _start(self) -> asyncio.subprocess.Process:
        self._is_starting, self._early_signal = True, None
        try:
            return await asyncio.create_subprocess_exec(
                *tied_command(self._module, self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=_MAX_LINE_BYTES,
                process_group=0,
            )
        finally:
            self._is_starting = False

    async def _follow(self, output: asyncio.StreamReader) -> None:
        """Take its lines until it has closed them; of one that is too long only the end."""
        while True:
            try:
                line = await output.readline()
            except ValueError:  # too long: the reader has dropped what it had of it
                continue
            if not line:
                return
            self._take(line.decode(errors="backslashreplace").rstrip("\n"))

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs, or as soon as it has been started."""
        if self._is_starting:
            self._early_signal = number
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def _take(self, line: str) -> None:
        entry = _entry(line)
        if entry is None:
            self.last_line = line.strip() or self.last_line
            entry = {"level": "warning", "logger": self._module, "message": line}
        message, logger = str(entry["message"]), str(entry["logger"])
        _log_as(self.name, entry)
        if message == self._serves_at[0] and logger.startswith(self._serves_at[1]) and not self.lives.is_serving:
            self.lives.serves()
            self._serves()


def _entry(line: str) -> dict[str, Any] | None:
    """A line of a JSON log, with its time in seconds; None: something else."""
    try:
        entry = json.loads(line)
        if not (isinstance(entry, dict) and entry["level"] in _LEVELS and {"logger", "message"} <= entry.keys()):
            return None
        if "time" in entry:
            entry["time"] = datetime.fromisoformat(entry["time"]).timestamp()
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    return entry


def _log_as(program: str, entry: dict[str, Any]) -> None:
    """Log what `program` has logged, at the time at which it did. Its debug lines were asked for there: `log-level` of an operator."""
    root, level = logging.getLogger(), _LEVELS[entry["level"]]
    if logging.DEBUG < level < root.level:
        return
    known = {"time", "level", "logger", "message", "traceback"}
    record = logging.makeLogRecord({"program": program, **{name: value for name, value in entry.items() if name not in known}})
    record.name, record.msg, record.levelno, record.levelname = str(entry["logger"]), entry["message"], level, logging.getLevelName(level)
    record.exc_text = entry.get("traceback")
    if "time" in entry:
        record.created = entry["time"]
        record.msecs = record.created % 1 * 1000
    root.handle(record)
