"""Decides what every worker runs next."""

from control_plane.core.options import SchedulerOptions


class Scheduler:
    """One waiting queue and one replica per worker in session."""

    def __init__(self, options: SchedulerOptions | None = None) -> None:
        self.options = options or SchedulerOptions()
