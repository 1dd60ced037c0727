"""Settings of the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of the loop; those of scheduling are in `control_plane.core.options`."""

    max_queued_requests: int = 10_000
    max_queued_tokens: int = 10_000_000  # known tokens of sequences that wait, the newcomer's included
    gauge_seconds: float = 0.25  # least time between two pictures for the gauges
