"""Logs: one line per event on standard error; text on a terminal, JSON otherwise. Prompts and output are never logged."""

import json
import logging
import sys
import time

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(log_format: str, level: str) -> None:
    """Send the root logger to standard error. `log_format`: auto, text or json; `level`: debug, info, warning or error."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TextFormatter() if as_text else _JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller passed as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


class _TextFormatter(logging.Formatter):
    """12:34:56 INFO    worker.service.server: serving address=127.0.0.1:50061"""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Append the extra fields as key=value."""
        return " ".join([super().formatMessage(record), *(f"{key}={value}" for key, value in _fields(record).items())])


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
        return json.dumps(entry, default=str, ensure_ascii=False)
