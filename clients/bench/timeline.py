"""When the tokens of one request arrived."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise

from clients.errors import ServingError
from clients.results import Delta, Event, Finished

Clock = Callable[[], float]


@dataclass(slots=True)
class Timeline:
    """Times in seconds of one clock; `failure` is empty for a request that ended well with all its tokens."""

    started_at: float
    token_times: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    prompt_tokens: int = 0
    failure: str = ""
    lateness_seconds: float | None = None  # of sending it, after its time in the schedule; None without one

    @property
    def num_tokens(self) -> int:
        return len(self.token_times)

    @property
    def first_token_seconds(self) -> float:
        """TTFT: from sending the request to the first token."""
        return self.token_times[0] - self.started_at

    @property
    def end_to_end_seconds(self) -> float:
        return self.ended_at - self.started_at

    @property
    def gaps(self) -> list[float]:
        """ITL: the time between each token and the one before; 0 for tokens that came in one message."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def seconds_per_token(self) -> float | None:
        """TPOT: (end to end - TTFT) / (tokens - 1); None for a single token."""
        if self.num_tokens < 2:
            return None
        return (self.end_to_end_seconds - self.first_token_seconds) / (self.num_tokens - 1)


async def follow(events: AsyncIterator[Event], expected_tokens: int, clock: Clock = time.perf_counter) -> Timeline:
    """Read the events of one request to its end. A ServingError becomes the timeline's failure, as does another number of tokens."""
    timeline = Timeline(clock())
    reported = 0
    try:
        async for event in events:
            if isinstance(event, Delta):
                timeline.token_times += [clock()] * len(event.token_ids)
            elif isinstance(event, Finished):
                timeline.prompt_tokens = event.usage.prompt_tokens
                reported = event.usage.completion_tokens
    except ServingError as error:
        timeline.failure = error.code.name
    timeline.ended_at = clock()
    if not timeline.failure and not timeline.num_tokens == reported == expected_tokens:
        timeline.failure = f"{expected_tokens} tokens asked for, {timeline.num_tokens} received, {reported} reported"
    return timeline
