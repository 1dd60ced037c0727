"""How far a client may stay behind its stream."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds of one stream between the engine and its client."""

    max_unwritten_tokens: int = 4096  # more hold the request; half of them let it go on
    slow_reader_seconds: float = 60.0  # a client that takes nothing for so long loses its request
