"""Goodput: the requests per second that meet all limits."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.bench.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Limits:
    """The most milliseconds of a good request; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def __str__(self) -> str:
        return " ".join(f"{name}:{limit:g}" for name, limit in asdict(self).items() if limit is not None)

    def are_met_by(self, timeline: "Timeline") -> bool:
        """Whether a request ended well and in time; a single token has no TPOT and meets any limit of it."""
        if timeline.failure or not timeline.token_times:
            return False
        measured = (
            (timeline.first_token_seconds, self.ttft_ms),
            (timeline.seconds_per_token, self.tpot_ms),
            (timeline.end_to_end_seconds, self.e2el_ms),
        )
        return all(limit is None or seconds is None or seconds * 1000 <= limit for seconds, limit in measured)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many requests met `limits`."""

    limits: Limits
    num_requests: int
    requests_per_second: float
