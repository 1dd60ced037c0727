"""What the engine says of its work while it works, to whoever records it."""

from control_plane.core.replica import Replica
from control_plane.core.step import Step
from control_plane.engine.ports import Failure
from control_plane.engine.request import LiveChoice


class EngineTracer:
    """Hears everything, and does nothing with it. Every call is made on the engine's event loop and must not block.

    A pass of the loop is told from its begin; each later call says what the time since the one before it was spent on.
    """

    def pass_begun(self) -> None:
        """A pass of the loop begins."""

    def result_applied(self, replica: Replica, step_id: int, num_tokens: int) -> None:
        """The result of a step was taken in, which brought so many tokens."""

    def scheduled(self) -> None:
        """Steps were built, or there was nothing to build."""

    def step_sent(self, replica: Replica, step: Step) -> None:
        """A step was handed to the link to its worker."""

    def published(self) -> None:
        """The pass has told front ends what it brought."""

    def result_arrived(self, replica: Replica, step_id: int) -> None:
        """A result came from the link; it is taken in by the next pass."""

    def choice_ended(self, choice: LiveChoice, failure: Failure | None) -> None:
        """A choice has ended; what is known of it stands in it."""
