"""What the engine tells about itself. Numbers only; whoever implements the protocol decides how they are exported.

Observations leave the engine once per pass of its loop, in one call; gauges are a snapshot that the engine replaces a few times a second
and that any thread may read.
"""

from dataclasses import dataclass, field
from typing import Protocol

from control_plane.core.pages.page_pool import PageCounts
from control_plane.engine.ports import Failure, FinishReason


@dataclass(slots=True)
class PassObservation:
    """What happened in one pass of the loop: counts are increments, times are in seconds.

    Replayed and resumed tokens are in none; a resume adds nothing to the prompts, the prefix lookups, the queue and the first tokens.
    """

    prompt_tokens: int = 0  # of requests admitted for the first time
    generation_tokens: int = 0
    prefix_query_tokens: int = 0  # looked up at first admission
    prefix_hit_tokens: int = 0
    preemptions: int = 0  # sequences that gave their pages back to others
    readmissions: int = 0  # sequences admitted again, for whatever reason
    worker_losses: int = 0  # sequences whose worker was lost or reset
    replays_exhausted: int = 0  # sequences ended by the replay cap
    numerics_changes: int = 0  # sequences continued under another numerics id
    requests_received: int = 0  # each ends in exactly one entry of `finished` or `failed`
    finished: list[FinishReason] = field(default_factory=list)  # per request: LENGTH if one of its choices ended so
    failed: list[Failure] = field(default_factory=list)  # one entry per failed request
    queue_seconds: list[float] = field(default_factory=list)  # arrival to first scheduled step, per request
    first_token_seconds: list[float] = field(default_factory=list)  # TTFT, per request
    inter_token_seconds: dict[float, int] = field(default_factory=dict)  # ITL: gap -> how many tokens had it
    output_token_seconds: list[float] = field(default_factory=list)  # TPOT, of choices with at least two tokens
    total_seconds: list[float] = field(default_factory=list)  # end to end, of finished choices
    step_seconds: list[float] = field(default_factory=list)  # round trip: step sent to result taken in
    step_tokens: list[int] = field(default_factory=list)  # tokens run, beside step_seconds
    device_seconds: list[float] = field(default_factory=list)  # device time of each step
    device_idle_seconds: list[float] = field(default_factory=list)  # device idle before each step that went on with earlier work
    loop_lag_seconds: float = 0.0  # from the event that woke the loop to the start of the pass


@dataclass(frozen=True, slots=True)
class WorkerGauges:
    """One worker in session."""

    address: str
    incarnation: str
    epoch: int
    numerics_id: str
    num_running: int
    steps_in_flight: int
    sent_step_id: int
    acked_step_id: int
    pages: PageCounts  # summed over cache groups and partitions


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """A snapshot of the engine. It is immutable: the reference to it may be read on any thread."""

    workers: tuple[WorkerGauges, ...] = ()
    num_running: int = 0  # sequences that hold a lane
    num_waiting_for_capacity: int = 0
    num_waiting_for_worker: int = 0  # no worker in session can take them
    num_held: int = 0  # sequences that neither run nor wait, because their reader is slow
    num_waiting_tokens: int = 0  # known tokens of sequences that wait
    num_stranded_tokens: int = 0  # those of them that no worker in session can take
    max_model_len: int = 0  # 0 until the first worker is in session
    retry_after_seconds: float = 0.1  # advice for who finds the queue full: how long requests have waited lately
    healthy: bool = True  # False after an unexpected error that no request could be blamed for, until a clean pass with no reset pending


class EngineMetrics(Protocol):
    """Takes the engine's observations."""

    def observe(self, observed: PassObservation) -> None:
        """Take in one pass; called on the engine's event loop, must not block nor keep `observed`."""
