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
        self.facts: dict[str, Any] = {}  # what it said when it first served
        self.last_line = ""  # that was no log: why it cannot start
        self._module = module
        self._arguments = list(arguments)
        self._serves_at = serves_at
        self._serves = serves
        self._process: asyncio.subprocess.Process | None = None

    async def live(self) -> int:
        """Run it once, until it has ended; returns its exit code. In a process group of its own: an interrupt is ours to pass on."""
        command = tied_command(self._module, self._arguments)
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE_BYTES,
            process_group=0,
        )
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._take(line.decode(errors="backslashreplace").rstrip("\n"))
        code = await self._process.wait()
        self._process = None
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def _take(self, line: str) -> None:
        entry = _entry(line)
        if entry is None:
            self.last_line = line.strip() or self.last_line
            entry = {"level": "warning", "logger": self._module, "message": line}
        message, logger = str(entry["message"]), str(entry["logger"])
        _log_as(self.name, entry)
        if message == "serving":
            self.facts = self.facts or entry
        if message == self._serves_at[0] and logger.startswith(self._serves_at[1]) and not self.lives.is_serving:
            self.lives.serves()
            self._serves()


def _entry(line: str) -> dict[str, Any] | None:
    """A line of a JSON log; None: something else."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and {"level", "logger", "message"} <= entry.keys() else None


def _log_as(program: str, entry: dict[str, Any]) -> None:
    """Log what `program` has logged, at the time at which it did."""
    root, level = logging.getLogger(), _LEVELS.get(entry["level"], logging.INFO)
    if level < root.level:
        return
    known = {"time", "level", "logger", "message", "traceback"}
    record = logging.makeLogRecord({"program": program, **{name: value for name, value in entry.items() if name not in known}})
    record.name, record.msg, record.levelno, record.levelname = str(entry["logger"]), entry["message"], level, logging.getLevelName(level)
    record.exc_text = entry.get("traceback")
    if "time" in entry:
        record.created = datetime.fromisoformat(entry["time"]).timestamp()
        record.msecs = record.created % 1 * 1000
    root.handle(record)
