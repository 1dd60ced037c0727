from prometheus_client import generate_latest

from worker.progress import ProgressCounter
from worker.service.metrics import WorkerMetrics
from worker.service.session import Session, SessionRequest


def described() -> WorkerMetrics:
    metrics = WorkerMetrics()
    metrics.describe({"numerics_id": "float32/fake"}, load_seconds=1.5, kv_cache_bytes=4096, pages={"full": 8})
    return metrics


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pypto_serving_worker_{name}", labels)


def test_every_label_value_is_there_from_the_start() -> None:
    metrics = described()
    metrics.watch_session(Session("worker-1", 10.0, 2))
    assert [value(metrics, "steps_total", outcome=outcome) for outcome in ("ok", "error")] == [0, 0]
    assert [value(metrics, "session_state", state=state) for state in ("free", "connected", "detached")] == [1, 0, 0]


def test_names_have_the_prefix_and_total_only_on_counters() -> None:
    metrics = described()
    metrics.watch_session(Session("worker-1", 10.0, 2))
    metrics.watch_progress(ProgressCounter())
    families = list(metrics.registry.collect())
    assert all(family.name.startswith("pypto_serving_worker_") for family in families)
    samples = [(family.type, sample.name) for family in families for sample in family.samples]
    assert all((kind == "counter") == name.endswith("_total") for kind, name in samples if not name.endswith("_created"))


def test_gauges_follow_the_session_and_the_progress() -> None:
    metrics, session, progress = WorkerMetrics(), Session[str]("worker-1", 10.0, 2), ProgressCounter()
    metrics.watch_session(session)
    metrics.watch_progress(progress)
    session.open(SessionRequest("a"), now=0.0)
    session.accept_step(1, 0, released=(), admitted=(0, 1))
    progress()
    assert [value(metrics, name) for name in ("epoch", "lanes", "steps_in_flight", "progress")] == [1, 2, 1, 1]
    assert value(metrics, "session_state", state="connected") == 1


def test_steps_are_observed() -> None:
    metrics = WorkerMetrics()
    metrics.count_step(device_us=3000, idle_us=None, num_tokens=4, num_lane_errors=1)
    metrics.count_step(device_us=3000, idle_us=150, num_tokens=4, num_lane_errors=0)
    metrics.count_failed_step()
    assert (value(metrics, "steps_total", outcome="ok"), value(metrics, "steps_total", outcome="error")) == (2, 1)
    assert (value(metrics, "sampled_tokens_total"), value(metrics, "lane_errors_total")) == (8, 1)
    assert (value(metrics, "step_device_seconds_count"), value(metrics, "device_idle_gap_seconds_count")) == (2, 1)


def test_what_is_fixed_is_exposed() -> None:
    text = generate_latest(described().registry).decode()
    assert 'numerics_id="float32/fake"' in text
    assert 'pypto_serving_worker_pages{group="full"} 8.0' in text
    assert "pypto_serving_worker_kv_cache_bytes 4096.0" in text and "pypto_serving_worker_model_load_seconds 1.5" in text


def test_two_workers_in_one_process_do_not_share_metrics() -> None:
    first, second = described(), described()
    first.count_stale_frame()
    assert (value(first, "stale_frames_total"), value(second, "stale_frames_total")) == (1, 0)


def test_the_worker_shows_what_its_owner_calls_it_and_nothing_of_owners_before() -> None:
    metrics = described()
    names = []
    for name in ("10.0.0.7:50061", "worker-0.worker:50061", ""):
        metrics.set_name(name)
        (family,) = [family for family in metrics.registry.collect() if family.name == "pypto_serving_worker_info"]
        names.append([(sample.labels["worker"], sample.value) for sample in family.samples])
    assert names == [[("10.0.0.7:50061", 1.0)], [("worker-0.worker:50061", 1.0)], []]
