"""The spans of one recording in one process, kept until it is over."""

import enum
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

_log = logging.getLogger(__name__)

_NONE: Mapping[str, int] = {}
_NO_LABELS: Mapping[str, str] = {}


class Level(enum.IntEnum):
    """How much is recorded; the values are those of the wire."""

    REQUESTS = 1
    STEPS = 2
    OPERATORS = 3
    KERNELS = 4


class Span(NamedTuple):
    """Something that took time, by the monotonic clock. Fields as in profile.proto."""

    name: str
    track: str
    row: str
    begin_ns: int
    duration_ns: int
    flows: Sequence[str] = ()
    counts: Mapping[str, int] = _NONE
    labels: Mapping[str, str] = _NO_LABELS


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """When a recording ends by itself, and how many spans each process keeps."""

    level: Level
    max_seconds: float
    max_spans: int


class SpanRecorder:
    """Takes spans in until its time is over or it is full; what comes later is counted, or left out. `add` may be called on any thread."""

    def __init__(self, recording_id: str, limits: RecordingLimits, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.recording_id = recording_id
        self.level = limits.level
        self.max_spans = limits.max_spans
        self.begin_ns = clock()
        self.end_ns = self.begin_ns + round(limits.max_seconds * 1e9)
        self.spans: list[Span] = []
        self.num_dropped = 0
        self.notes: list[str] = []

    @property
    def has_steps(self) -> bool:
        """Whether steps are recorded."""
        return self.level >= Level.STEPS

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """Nothing of what is recorded is to suffer from it: what the block raises is logged, and ends the recording here."""
        try:
            yield
        except Exception as error:
            if self.end_ns:
                _log.exception("a recording has failed, and ends here", extra={"recording": self.recording_id})
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Keep no more: what was to tell has failed, and cannot be relied on."""
        if self.end_ns:
            self.notes.append(f"it ends early, as it has failed: {type(error).__name__}: {error}")
        self.end_ns = 0

    def add(self, span: Span) -> None:
        """Keep a span, unless it began when the time was over."""
        if span.begin_ns >= self.end_ns:
            return
        if len(self.spans) >= self.max_spans:
            self.num_dropped += 1
        else:
            self.spans.append(span)
