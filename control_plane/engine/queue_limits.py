"""What the queue takes in, and for what it is too late."""

from control_plane.core.scheduler import Scheduler
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import GenerationRequest

#: Numerics ids that no worker had yet and that requests may wait for at the same time.
_MAX_UNSEEN = 16


class QueueLimits:
    """Bounds the queue. What no worker in session can take is counted apart, with the same limits, as it is in nobody's way."""

    def __init__(self, scheduler: Scheduler, options: EngineOptions) -> None:
        self._scheduler = scheduler
        self._options = options

    def overflow(self, spec: GenerationRequest) -> str | None:
        """Why a request does not fit into the queue; into an empty one everything fits."""
        waiting = self._scheduler.waiting
        num_waiting, num_tokens = waiting.num_stranded, waiting.num_stranded_tokens
        if all(waiting.has_worker(choice.resumed_numerics_id) for choice in spec.choices):
            num_waiting, num_tokens = len(waiting) - num_waiting, waiting.num_tokens - num_tokens
        if not num_waiting:
            return None
        max_requests, max_tokens = self._options.queue_limits(spec.takes_over)
        if num_waiting + len(spec.choices) > max_requests:
            return f"{num_waiting} sequences wait, {len(spec.choices)} would come, limit {max_requests}"
        num_coming = sum(len(spec.prompt_token_ids) + len(choice.resumed_token_ids) for choice in spec.choices)
        if num_tokens + num_coming > max_tokens:
            return f"{num_tokens} tokens wait, {num_coming} would come, limit {max_tokens}"
        return None

    def unseen_numerics(self, spec: GenerationRequest, now: float) -> str | None:
        """The numerics id of a resume that no worker had, when it is too late, or too much, to wait for one."""
        scheduler, options = self._scheduler, self._scheduler.options
        wanted = {choice.resumed_numerics_id for choice in spec.choices if choice.resumed_token_ids} - {None}
        unseen = wanted - scheduler.numerics_seen
        if not unseen or options.continue_on_numerics_change:
            return None
        is_late = scheduler.first_join_time is not None and now >= scheduler.first_join_time + options.grace_seconds
        are_many = len((scheduler.waiting.numerics_ids | unseen) - scheduler.numerics_seen) > _MAX_UNSEEN
        return min(filter(None, unseen)) if is_late or are_many else None
