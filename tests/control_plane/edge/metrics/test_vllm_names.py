"""vLLM's names for what we count."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.edge.metrics.collector import EngineCollector
from control_plane.edge.metrics.counts import EngineCounts, LinkCounts
from control_plane.edge.metrics.vllm_names import VllmNames
from control_plane.engine.ports import Failure, FinishReason
from control_plane.engine.snapshot import EngineSnapshot, PageCounts, WorkerSnapshot
from control_plane.engine.stats import PassObservation

#: What vLLM's own Grafana board, the Gateway API inference extension and vLLM's router ask for.
ASKED_FOR = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_bucket",
    "vllm:iteration_tokens_total_bucket",
}


class Scrape:
    """An engine's counts, and what a scrape shows of it under vLLM's names."""

    def __init__(self, snapshot: EngineSnapshot | None = None) -> None:
        self.engine = EngineCounts()
        ours = EngineCollector(self.engine, LinkCounts(), lambda: snapshot or EngineSnapshot(), lambda: 3)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(VllmNames(ours, "tiny"))

    def values(self, name: str) -> dict[tuple[str, str], float]:
        """Values of samples by a label's name and value, beside those that all have."""
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(generate_latest(self._registry).decode()):
            for sample in family.samples:
                labels = dict(sample.labels)
                assert (labels.pop("model_name"), labels.pop("engine")) == ("tiny", "0")
                if sample.name == name:
                    found[next(iter(labels.items()), ("", ""))] = sample.value
        return found


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_each_name_is_there_from_the_start(name: str) -> None:
    assert Scrape().values(name)


def test_gauges_follow_the_engine() -> None:
    workers = [WorkerSnapshot(f"w:{n}", "i", 4, "n", 2, 1, 9, 8, PageCounts(free=5, fenced=1, cached=2, referenced=2)) for n in range(2)]
    scrape = Scrape(EngineSnapshot(workers=tuple(workers), num_running=4, num_waiting_for_capacity=2))
    assert scrape.values("vllm:num_requests_running") == {("", ""): 4}
    assert scrape.values("vllm:num_requests_waiting") == {("", ""): 5}
    assert scrape.values("vllm:kv_cache_usage_perc") == {("", ""): 0.3}


def test_without_workers_no_cache_is_in_use() -> None:
    assert Scrape().values("vllm:kv_cache_usage_perc") == {("", ""): 0}


def test_counts_and_histograms_are_ours() -> None:
    scrape = Scrape()
    scrape.engine.observe(PassObservation(generation_tokens=5, inter_token_seconds={0.02: 4}, step_tokens=[7]))
    assert scrape.values("vllm:generation_tokens_total") == {("", ""): 5}
    assert scrape.values("vllm:inter_token_latency_seconds_bucket")["le", "0.02"] == 4
    assert scrape.values("vllm:iteration_tokens_total_sum") == {("", ""): 7}


def test_outcomes_have_vllms_words() -> None:
    scrape = Scrape()
    failed = [Failure.CANCELLED, Failure.READER_TOO_SLOW, Failure.INTERNAL, Failure.QUEUE_FULL]
    scrape.engine.observe(PassObservation(finished=[FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH], failed=failed))
    finished = scrape.values("vllm:request_success_total")
    assert {reason: count for (_, reason), count in finished.items()} == {"stop": 2, "length": 1, "abort": 2, "error": 1}
