"""The state of a service, as plain values. `dataclasses.asdict` makes JSON of it. It holds no token and no text of a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pages:
    """KV pages by state."""

    free: int = 0
    fenced: int = 0
    cached: int = 0
    referenced: int = 0

    @property
    def total(self) -> int:
        return self.free + self.fenced + self.cached + self.referenced


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker that a control plane has been told of. `phase`: connecting, refused, in_session or resuming; `trouble`: what is wrong."""

    address: str
    phase: str
    trouble: str = ""
    num_running: int = 0
    steps_in_flight: int = 0
    pages: Pages = Pages()
    numerics_id: str = ""


@dataclass(frozen=True, slots=True)
class ControlPlaneState:
    """What the admin service at `target` says. `num_held_back`: requests that wait for the first worker there is."""

    target: str
    is_draining: bool
    num_waiting: int
    num_held: int
    num_held_back: int
    num_calls: int
    workers: tuple[WorkerState, ...]

    @property
    def num_running(self) -> int:
        """Sequences that hold a lane."""
        return sum(worker.num_running for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` times in the last minute, in seconds; interpolated between the bounds of a histogram."""

    count: int
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, between the last two readings, which lie `span_seconds` apart."""

    span_seconds: float
    requests: float
    prompt_tokens: float
    generation_tokens: float
    steps: float


@dataclass(frozen=True, slots=True)
class Count:
    """How often something happened: since the processes began, in the last minute, and how long ago it was seen to happen, if it was."""

    name: str
    total: int
    recent: int
    seconds_ago: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """What metrics say, all processes together; None where there is nothing to tell yet. `waiting`: sequences by what they wait for.

    `outcomes`: requests by how they ended. `errors`: calls that failed, by status, the last one first. `incidents`: what streams live
    through, such as preemptions and lost workers.
    """

    is_healthy: bool
    waiting: Mapping[str, int]
    waiting_tokens: int
    rates: Rates | None
    time_to_first_token: Percentiles | None
    inter_token: Percentiles | None
    queue: Percentiles | None
    prefix_hit_ratio: float | None
    outcomes: tuple[Count, ...]
    errors: tuple[Count, ...]
    incidents: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service at `at` (time.time()). `activity` is None without metrics; `failures` says why a source could not be read."""

    at: float
    control_planes: tuple[ControlPlaneState, ...] = ()
    activity: Activity | None = None
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """Of all control planes."""
        return tuple(worker for plane in self.control_planes for worker in plane.workers)
