"""From readings of a service to its state."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from clients.errors import ServingError
from clients.service_state.exposition import Sample
from clients.service_state.state import Activity, ControlPlaneState, Count, Pages, ServiceState, WorkerState
from clients.service_state.totals import Totals
from pypto_serving.admin.v1 import admin_pb2 as pb

_PHASES = {
    pb.LINK_PHASE_CONNECTING: "connecting",
    pb.LINK_PHASE_REFUSED: "refused",
    pb.LINK_PHASE_IN_SESSION: "in_session",
    pb.LINK_PHASE_RESUMING: "resuming",
}
#: Statuses of calls that are no errors of the service: all is well, or the client has gone.
_NO_ERRORS = ("ok", "cancelled")
_INCIDENTS = ("preemptions", "readmissions", "worker_losses", "replays_exhausted", "numerics_changes", "late_refusals")
_LINK_INCIDENTS = ("link_sessions_resumed", "link_digest_mismatches", "link_resets")


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a service at one time: GetState by admin target, metrics by URL, and why others could not be read.

    `errors`: those of admin targets, which `failures` has in words.
    """

    states: Mapping[str, pb.GetStateResponse] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, ServingError] = field(default_factory=dict)
    monotonic: float = field(default_factory=time.monotonic)


class ServiceObserver:
    """Remembers a minute of readings of one service. Bounded by its processes and workers; one thread at a time."""

    def __init__(self) -> None:
        self._totals = Totals()

    def observe(self, reading: Reading) -> ServiceState:
        """What the service does by now."""
        self._totals.add(reading.monotonic, reading.metrics)
        planes = tuple(_control_plane(target, state) for target, state in reading.states.items())
        activity = _activity(self._totals, [sample for samples in reading.metrics.values() for sample in samples])
        return ServiceState(time.time(), planes, activity if reading.metrics else None, dict(reading.failures))


def _control_plane(target: str, state: pb.GetStateResponse) -> ControlPlaneState:
    in_session = {worker.address: worker for worker in state.workers}
    links = {link.address: link for link in state.links}
    workers = [_worker(address, links.get(address), in_session.get(address)) for address in {**links, **in_session}]
    return ControlPlaneState(
        target=target,
        is_draining=state.draining,
        num_waiting=state.num_waiting,
        num_held=state.num_held,
        num_held_back=state.num_held_back,
        num_calls=state.num_calls,
        workers=tuple(workers),
    )


def _worker(address: str, link: pb.LinkState | None, worker: pb.WorkerState | None) -> WorkerState:
    phase, trouble = (_PHASES.get(link.phase, "unknown"), link.trouble) if link else ("in_session", "")
    if worker is None:
        return WorkerState(address, phase, trouble)
    pages = worker.pages
    return WorkerState(
        address,
        phase,
        trouble,
        num_running=worker.num_running,
        steps_in_flight=worker.sent_step_id - worker.acked_step_id,
        pages=Pages(pages.free, pages.fenced, pages.cached, pages.referenced),
        numerics_id=worker.numerics_id,
    )


def _activity(totals: Totals, samples: Sequence[Sample]) -> Activity:
    waiting = {reason: int(_gauge(samples, "requests_waiting", reason)) for reason in ("capacity", "worker")}
    looked_up = totals.recent("prefix_query_tokens_total")
    return Activity(
        is_healthy=all(sample.value for sample in samples if sample.name == "engine_healthy"),
        waiting=waiting,
        waiting_tokens=int(_gauge(samples, "waiting_tokens")),
        rates=totals.rates(),
        time_to_first_token=totals.percentiles("time_to_first_token_seconds"),
        inter_token=totals.percentiles("inter_token_seconds"),
        queue=totals.percentiles("queue_seconds"),
        prefix_hit_ratio=totals.recent("prefix_hit_tokens_total") / looked_up if looked_up else None,
        outcomes=tuple(count for count in totals.counts("requests_finished_total") if count.total),
        errors=_errors(totals),
        incidents=tuple(replace(count, name=name) for name in (*_INCIDENTS, *_LINK_INCIDENTS) for count in totals.counts(f"{name}_total")),
    )


def _errors(totals: Totals) -> tuple[Count, ...]:
    errors = [count for count in totals.counts("calls_total") if count.total and count.name not in _NO_ERRORS]
    return tuple(sorted(errors, key=lambda error: (error.seconds_ago is None, error.seconds_ago, -error.total)))


def _gauge(samples: Sequence[Sample], name: str, label: str = "") -> float:
    return sum(sample.value for sample in samples if sample.name == name and sample.label == label)
