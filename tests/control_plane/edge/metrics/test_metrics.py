"""What a scrape shows."""

import itertools
from collections.abc import Sequence

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.edge.metrics.collector import BuildCollector, EngineCollector, FrontEndCollector
from control_plane.edge.metrics.counts import CallCounts, EngineCounts, LinkCounts
from control_plane.edge.metrics.families import FIRST_TOKEN_SECONDS, LENGTHS, SECONDS, SHORT_SECONDS, SIZES, TOKEN_SECONDS, Histogram
from control_plane.engine.ports import Failure, FinishReason
from control_plane.engine.snapshot import EngineSnapshot, PageCounts, WorkerSnapshot
from control_plane.engine.stats import PassObservation
from pypto_serving.process.version import version


class Metrics:
    """All counts behind one registry."""

    def __init__(self) -> None:
        self.engine, self.link, self.calls = EngineCounts(), LinkCounts(), CallCounts(["Generate"])
        self.snapshot = EngineSnapshot()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(EngineCollector(self.engine, self.link, lambda: self.snapshot, lambda: 3))
        self.registry.register(FrontEndCollector(self.calls, lambda: 7))

    def samples(self) -> dict[tuple[str, ...], float]:
        """Values by name and label values."""
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        return {(sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples}

    def __getitem__(self, key: tuple[str, ...]) -> float:
        return self.samples()[("pypto_serving_" + key[0], *key[1:])]


def test_what_alerts_look_at_is_there_from_the_start() -> None:
    samples = Metrics().samples()
    for reason in (*FinishReason, *Failure):
        assert samples[("pypto_serving_requests_finished_total", reason.value)] == 0
    assert {key[2] for key in samples if key[0] == "pypto_serving_calls_total"} == {"ok", "internal", "resource_exhausted"}
    assert samples[("pypto_serving_requests_waiting", "capacity")] == 0


def test_names_have_the_prefix_and_only_counters_end_in_total() -> None:
    families = list(text_string_to_metric_families(generate_latest(Metrics().registry).decode()))
    assert all(family.name.startswith("pypto_serving_") and family.documentation for family in families)
    totals = {sample.name for family in families if family.type != "counter" for sample in family.samples if sample.name.endswith("_total")}
    assert not totals


def test_a_pass_of_the_engine_is_counted() -> None:
    metrics = Metrics()
    observed = PassObservation(generation_tokens=5, inter_token_seconds={0.02: 4}, first_token_seconds=[0.3], finished=[FinishReason.STOP])
    metrics.engine.observe(observed)
    metrics.engine.observe(observed)
    assert metrics["generation_tokens_total",] == 10
    assert metrics["inter_token_seconds_count",] == 8
    assert metrics["time_to_first_token_seconds_sum",] == 0.6
    assert metrics["requests_finished_total", "stop"] == 2


def test_gauges_follow_the_engines_snapshot() -> None:
    metrics = Metrics()
    worker = WorkerSnapshot("w:1", "i", 4, "n", 2, 1, 9, 8, PageCounts(free=5, fenced=1, cached=2, referenced=2))
    metrics.snapshot = EngineSnapshot(workers=(worker,), num_running=2, num_waiting_for_worker=1, num_held=5, max_model_len=64)
    assert metrics["pages", "fenced", "w:1"] == 1
    assert metrics["pages_ratio", "free", "w:1"] == 0.5
    assert metrics["requests_waiting", "worker"] == 4
    assert (metrics["requests_running",], metrics["requests_held",]) == (2, 5)
    assert (metrics["workers",], metrics["steps_in_flight", "w:1"]) == (1, 1)


@pytest.mark.parametrize(
    ("event", "name"),
    [("session_resumed", "link_sessions_resumed"), ("digest_mismatched", "link_digest_mismatches"), ("worker_reset", "link_resets")],
)
def test_what_happens_to_a_link_is_counted_by_worker(event: str, name: str) -> None:
    metrics = Metrics()
    metrics.link.worker_connected("w:1", epoch=1)
    assert metrics[f"{name}_total", "w:1"] == 0
    for _ in range(2):
        getattr(metrics.link, event)("w:1")
    assert metrics[f"{name}_total", "w:1"] == 2


def test_met_02_a_forgotten_worker_leaves_no_series() -> None:
    metrics = Metrics()
    before = set(metrics.samples())
    metrics.link.worker_connected("w:1", epoch=3)
    metrics.link.step_sent("w:1", 60)
    metrics.link.worker_silence("w:1", 0.5)
    assert (metrics["link_epoch", "w:1"], metrics["link_steps_total", "w:1"], metrics["link_silence_seconds", "w:1"]) == (3, 1, 0.5)
    metrics.link.worker_disconnected("w:1")
    assert metrics["link_in_session", "w:1"] == 0
    metrics.link.worker_forgotten("w:1")
    assert set(metrics.samples()) == before


def test_met_02_restarts_of_a_worker_add_no_series() -> None:
    metrics = Metrics()

    def restart(index: int) -> set[tuple[str, ...]]:
        worker = WorkerSnapshot("w:1", f"incarnation{index}", index, f"numerics{index}", 2, 1, 9, 8, PageCounts(1, 1, 1, 1))
        metrics.snapshot = EngineSnapshot(workers=(worker,))
        metrics.link.worker_connected("w:1", epoch=index)
        return set(metrics.samples())

    assert restart(0) == restart(1) == restart(50)


@pytest.mark.parametrize("bounds", [SECONDS, SHORT_SECONDS, FIRST_TOKEN_SECONDS, TOKEN_SECONDS, SIZES, LENGTHS])
def test_met_03_neighbouring_bounds_differ_by_a_factor_of_3_at_most(bounds: Sequence[float]) -> None:
    assert all(1 < high / low <= 3 for low, high in itertools.pairwise(bounds))


def test_first_tokens_and_gaps_are_told_apart_to_less_than_double() -> None:
    assert FIRST_TOKEN_SECONDS[0] == 0.001 and TOKEN_SECONDS[0] == 0.0005
    assert all(high / low < 1.7 for bounds in (FIRST_TOKEN_SECONDS, TOKEN_SECONDS) for low, high in itertools.pairwise(bounds))


def test_build_and_limits_are_shown() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BuildCollector("qwen", "f1", {"max_num_seqs": 256}))
    build = {"version": version(), "model": "qwen", "model_fingerprint": "f1"}
    assert registry.get_sample_value("pypto_serving_build_info", build) == 1
    assert registry.get_sample_value("pypto_serving_limits", {"limit": "max_num_seqs"}) == 256


def test_met_03_long_gaps_and_huge_prompts_land_in_finite_buckets() -> None:
    metrics = Metrics()
    metrics.engine.observe(PassObservation(inter_token_seconds={90.0: 1}, step_tokens=[1_000_000], first_token_seconds=[0.005]))
    for name in ("inter_token_seconds", "step_tokens", "time_to_first_token_seconds"):
        buckets = {key: value for key, value in metrics.samples().items() if key[0] == f"pypto_serving_{name}_bucket"}
        assert sorted(buckets.values())[-2:] == [1, 1], "a finite one beside +Inf"


def test_met_03_a_value_counts_in_the_buckets_above_it() -> None:
    histogram = Histogram(SECONDS)
    histogram.observe_all([0.005, 600.0, 1e9])
    buckets = dict(histogram.buckets())
    assert (buckets["0.005"], buckets["500.0"], buckets["1000.0"], buckets["+Inf"]) == (1, 1, 2, 3)


def test_calls_are_counted_by_status() -> None:
    metrics = Metrics()
    metrics.calls.observe_call("Generate", grpc.StatusCode.OK)
    assert metrics["calls_total", "Generate", "ok"] == 1
