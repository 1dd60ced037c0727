"""How far a client may stay behind its stream."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds between the engine and clients. More holds a request; half of it lets it go on."""

    max_unwritten_tokens: int = 4096  # of one stream
    max_unwritten_bytes: int = 1 << 20  # of one stream, in memory
    max_unwritten_total_bytes: int = 256 << 20  # of all; from half of it on streams are held earlier
    slow_reader_seconds: float = 60.0  # a client that takes nothing for so long loses its request
