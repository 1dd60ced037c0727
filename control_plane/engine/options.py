"""Options of the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the loop; those of scheduling are in `control_plane.core.options`."""

    max_queued_requests: int = 10_000
    max_queued_tokens: int = 10_000_000  # known tokens of sequences that wait, the newcomer's included
    # Beyond both, resumes may fill half as much again: they were running before newcomers filled the queue.
    snapshot_seconds: float = 0.25  # least time between two snapshots for the gauges

    def queue_limits(self, is_resume: bool) -> tuple[int, int]:
        """Sequences, and known tokens, above which nothing more may wait."""
        limits = self.max_queued_requests, self.max_queued_tokens
        return (limits[0] * 3 // 2, limits[1] * 3 // 2) if is_resume else limits
