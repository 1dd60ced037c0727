"""From what a service tells to its state."""

import dataclasses
import json

from clients.service_state.exposition import parse
from clients.service_state.observer import Reading, ServiceObserver
from clients.service_state.state import Pages
from pypto_serving.admin.v1 import admin_pb2 as pb

WORKER = pb.WorkerState(
    address="w:1",
    sent_step_id=9,
    acked_step_id=7,
    num_running=3,
    pages=pb.PageCounts(free=1, fenced=2, cached=3, referenced=4),
    numerics_id="cpu/x",
)


def observed(*readings):
    """The state after some readings, a second apart."""
    observer = ServiceObserver()
    return [observer.observe(dataclasses.replace(reading, monotonic=float(at))) for at, reading in enumerate(readings)][-1]


def with_metrics(*lines):
    return Reading(metrics={"m": parse("".join(f"pypto_serving_{line}\n" for line in lines))})


def test_a_worker_in_session_tells_its_pages_and_steps():
    link = pb.LinkState(address="w:1", phase=pb.LINK_PHASE_IN_SESSION)
    plane = observed(Reading(states={"c:1": pb.GetStateResponse(workers=[WORKER], links=[link], num_waiting=5)})).control_planes[0]
    (worker,) = plane.workers
    assert (worker.address, worker.phase, worker.steps_in_flight, worker.pages) == ("w:1", "in_session", 2, Pages(1, 2, 3, 4))
    assert (plane.target, plane.num_running, plane.num_waiting, worker.pages.total) == ("c:1", 3, 5, 10)


def test_a_worker_that_is_lost_tells_its_trouble():
    link = pb.LinkState(address="w:2", phase=pb.LINK_PHASE_CONNECTING, trouble="connection refused")
    (worker,) = observed(Reading(states={"c:1": pb.GetStateResponse(links=[link])})).workers
    assert (worker.phase, worker.trouble, worker.pages.total) == ("connecting", "connection refused", 0)


def test_without_metrics_there_is_no_activity():
    assert observed(Reading(failures={"m": "Connection refused"})).activity is None


def test_prefix_hits_are_a_share_of_the_last_minute():
    before = with_metrics("prefix_query_tokens_total 1000", "prefix_hit_tokens_total 1000")
    after = with_metrics("prefix_query_tokens_total 1200", "prefix_hit_tokens_total 1050")
    assert observed(before).activity.prefix_hit_ratio is None
    assert observed(before, after).activity.prefix_hit_ratio == 0.25


def test_errors_are_calls_that_failed_the_last_first():
    calls = 'calls_total{{method="{}",code="{}"}} {}'
    before = with_metrics(calls.format("G", "ok", 5), calls.format("G", "internal", 9), calls.format("T", "unavailable", 1))
    after = with_metrics(calls.format("G", "ok", 8), calls.format("G", "internal", 9), calls.format("T", "unavailable", 2))
    errors = observed(before, after, after).activity.errors
    assert [(error.name, error.total, error.recent, error.seconds_ago) for error in errors] == [
        ("unavailable", 2, 1, 1.0),
        ("internal", 9, 0, None),
    ]


def test_the_first_errors_of_a_kind_are_recent():
    ok = 'calls_total{method="G",code="ok"} 5'
    errors = observed(with_metrics(ok), with_metrics(ok, 'calls_total{method="G",code="unavailable"} 50')).activity.errors
    assert [(error.name, error.recent, error.seconds_ago) for error in errors] == [("unavailable", 50, 0.0)]


def test_waiting_sequences_are_told_by_what_they_wait_for():
    told = observed(with_metrics('requests_waiting{reason="capacity"} 2', 'requests_waiting{reason="worker"} 1', "waiting_tokens 70"))
    assert (told.activity.waiting, told.activity.waiting_tokens) == ({"capacity": 2, "worker": 1}, 70)


def test_a_state_is_json():
    states = {"c:1": pb.GetStateResponse(workers=[WORKER])}
    state = observed(dataclasses.replace(with_metrics("preemptions_total 3"), states=states, failures={"x": "y"}))
    told = json.loads(json.dumps(dataclasses.asdict(state)))
    assert told["control_planes"][0]["workers"][0]["pages"] == {"free": 1, "fenced": 2, "cached": 3, "referenced": 4}
    assert told["activity"]["incidents"] == [{"name": "preemptions", "total": 3, "recent": 0, "seconds_ago": None}]
