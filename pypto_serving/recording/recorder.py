"""The spans of one recording in one process, kept until it is over."""

import enum
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """Takes spans in until its time is over or it is full; what comes later is counted, or left out.

    `add` may be called on any thread, `note` on one.
    """

    def __init__(self, recording_id: str, limits: RecordingLimits, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.recording_id = recording_id
        self.level = limits.level
        self.max_spans = limits.max_spans
        self.begin_ns = clock()
        self.end_ns = self.begin_ns + round(limits.max_seconds * 1e9)
        self.num_dropped = 0
        self._spans: list[Span] = []
        self._noted: list[tuple[Callable[..., Iterable[Span]], tuple[Any, ...]]] = []  # what makes spans, and of what
        self._num_noted = 0  # spans that this will make
        self.notes: list[str] = []

    def spans(self) -> Iterator[Span]:
        """All that is kept. It takes long where spans are many, and may be done on any thread."""
        yield from tuple(self._spans)  # a thread may add its last one yet
        for make, facts in tuple(self._noted):
            yield from make(*facts)

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
        if self._takes(span.begin_ns, 1):
            self._spans.append(span)

    def note(self, begin_ns: int, num_spans: int, make: Callable[..., Iterable[Span]], *facts: Any) -> None:
        """Keep what `num_spans` spans of one thread will be made of, the first of which began at `begin_ns`, by the same rules.

        `make` makes them of the `facts` when somebody looks at them: what is recorded waits for no more than for the facts.
        """
        if self._takes(begin_ns, num_spans):
            self._noted.append((make, facts))
            self._num_noted += num_spans

    def _takes(self, begin_ns: int, num_spans: int) -> bool:
        if begin_ns >= self.end_ns:
            return False
        if len(self._spans) + self._num_noted + num_spans > self.max_spans:
            self.num_dropped += num_spans
            return False
        return True
