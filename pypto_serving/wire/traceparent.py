"""The W3C trace context of a request: `traceparent`, which names a trace, the caller's span in it, and whether it is recorded."""

import re
from dataclasses import dataclass

#: Name of the gRPC metadata and of the HTTP header.
TRACEPARENT = "traceparent"

_VERSION_0 = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
#: Later versions may add fields, each after a hyphen; what version 0 knows of them keeps its place.
_LATER = re.compile(r"(?!ff|00)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL)
_MAX_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class SpanParent:
    """What a traceparent says."""

    trace_id: str  # 32 hexadecimal digits, not all zero
    span_id: str  # 16, likewise
    is_sampled: bool


def read_traceparent(text: str) -> SpanParent | None:
    """Read a traceparent, of version 0 or as version 0 may read a later one; None: it is invalid, and the specification has it ignored."""
    found = (_VERSION_0.fullmatch(text) or _LATER.fullmatch(text)) if len(text) <= _MAX_LENGTH else None
    if found is None or not (found[1].strip("0") and found[2].strip("0")):
        return None
    return SpanParent(found[1], found[2], bool(int(found[3], 16) & 1))


def write_traceparent(parent: SpanParent) -> str:
    """The traceparent of version 0; other flags than `sampled` are unknown to us and are not handed on."""
    return f"00-{parent.trace_id}-{parent.span_id}-{int(parent.is_sampled):02x}"


def clean_traceparent(text: str) -> str:
    """A traceparent as version 0 writes it; empty for one that is to be ignored."""
    parent = read_traceparent(text)
    return write_traceparent(parent) if parent else ""
