"""What boards, autoscalers and gateways made for vLLM look for: our families once more, under its names."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control_plane.edge.metrics.families import PREFIX
from control_plane.engine.ports import Failure, FinishReason

#: Ours, without the prefix, and what of vLLM has the same meaning. Its boards compute quantiles: the bounds of buckets may be ours.
_SAME = {
    "requests_running": "num_requests_running",
    "preemptions": "num_preemptions",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "prefix_query_tokens": "prefix_cache_queries",
    "prefix_hit_tokens": "prefix_cache_hits",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_seconds": "inter_token_latency_seconds",
    "time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "request_seconds": "e2e_request_latency_seconds",
    "queue_seconds": "request_queue_time_seconds",
    "prefill_seconds": "request_prefill_time_seconds",
    "decode_seconds": "request_decode_time_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generation_tokens",
    "step_tokens": "iteration_tokens_total",
}

#: vLLM's word for an outcome. Requests that never ran because they were wrong or too many are in none of its counts.
_FINISHED_REASONS = {
    FinishReason.STOP.value: "stop",
    FinishReason.LENGTH.value: "length",
    Failure.CANCELLED.value: "abort",
    Failure.DEADLINE_EXCEEDED.value: "abort",
    Failure.READER_TOO_SLOW.value: "abort",
    Failure.ABORTED.value: "error",
    Failure.UNAVAILABLE.value: "error",
    Failure.INTERNAL.value: "error",
}

_PAGES_IN_USE = ("referenced", "fenced")  # cached ones are there for whoever needs the space, as vLLM's are


class VllmNames(Collector):
    """Translates at each scrape: nothing is counted twice."""

    def __init__(self, engine: Collector, model_name: str) -> None:
        """`engine`: the collector of what belongs to workers; `model_name`: how requests call the model."""
        self._engine = engine
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        ours = {family.name.removeprefix(PREFIX): family for family in self._engine.collect()}
        for name, theirs in _SAME.items():
            yield self._renamed(ours[name], theirs)
        waiting = sum(sample.value for sample in ours["requests_waiting"].samples)
        yield self._gauge("num_requests_waiting", "Requests that wait.", waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, from 0 to 1.", _share_in_use(ours["pages"]))
        yield self._finished(ours["requests_finished"])

    def _renamed(self, family: Metric, name: str) -> Metric:
        renamed = Metric(f"vllm:{name}", family.documentation, family.type)
        for sample in family.samples:
            renamed.add_sample(sample.name.replace(family.name, renamed.name, 1), self._labels | sample.labels, sample.value)
        return renamed

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", documentation, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _finished(self, outcomes: Metric) -> Metric:
        counts: dict[str, float] = dict.fromkeys(_FINISHED_REASONS.values(), 0.0)
        for sample in outcomes.samples:
            if reason := _FINISHED_REASONS.get(sample.labels["reason"]):
                counts[reason] += sample.value
        labels = (*self._labels, "finished_reason")
        family = CounterMetricFamily("vllm:request_success", "Requests that ended, by vLLM's word for the outcome.", labels=labels)
        for reason, count in counts.items():
            family.add_metric((*self._labels.values(), reason), count)
        return family


def _share_in_use(pages: Metric) -> float:
    total = sum(sample.value for sample in pages.samples)
    return sum(sample.value for sample in pages.samples if sample.labels["state"] in _PAGES_IN_USE) / total if total else 0.0
