"""Metrics of front ends beside those of the scheduler."""

import pytest
from prometheus_client import CollectorRegistry, PlatformCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from control_plane.edge.metrics.collector import FrontEndCollector
from control_plane.edge.metrics.counts import CallCounts
from control_plane.edge.metrics.families import gauge
from control_plane.edge.metrics.front_ends import AllProcesses, RenderedMetrics


class Own(Collector):
    """What a scheduler counts."""

    def collect(self) -> list[Metric]:
        return [gauge("workers", "Workers.", 2), gauge("unwritten_bytes", "Memory.", 1)]


def front_end(num_unwritten_bytes: int) -> bytes:
    registry = CollectorRegistry()
    registry.register(FrontEndCollector(CallCounts(["Generate"]), lambda: num_unwritten_bytes))
    return generate_latest(registry)


def families(front_ends: dict[str, bytes]) -> dict[str, Metric]:
    text = generate_latest(AllProcesses(Own(), lambda: front_ends)).decode()
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def test_each_family_is_there_once_with_the_samples_of_every_process() -> None:
    shown = families({"1": front_end(7), "0": front_end(5)})
    unwritten = [(sample.labels.get("frontend"), sample.value) for sample in shown["pypto_serving_unwritten_bytes"].samples]
    assert unwritten == [(None, 1), ("0", 5), ("1", 7)]
    assert shown["pypto_serving_workers"].samples[0].labels == {}


def test_counters_and_histograms_keep_their_kind() -> None:
    shown = families({"a:1": front_end(0)})
    assert shown["pypto_serving_calls"].type == "counter"
    assert shown["pypto_serving_calls"].samples[0].labels == {"frontend": "a:1", "method": "Generate", "code": "ok"}
    lag = shown["pypto_serving_client_loop_lag_seconds"]
    assert lag.type == "histogram" and {"frontend", "le"} == set(lag.samples[0].labels)


def test_what_is_no_metrics_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    shown = families({"0": b"pypto{", "1": front_end(7)})
    assert len(shown["pypto_serving_unwritten_bytes"].samples) == 2
    assert [record.message for record in caplog.records] == ["metrics of a front end left out"]


def test_a_text_is_made_on_a_thread_and_taken_the_next_time() -> None:
    rendered = RenderedMetrics(Own())
    assert rendered.latest() == b""
    while not (text := rendered.latest()):
        pass
    rendered.close()
    assert text == generate_latest(Own())


def test_a_collector_that_keeps_its_families_is_scraped_as_often_as_one_likes() -> None:
    registry = CollectorRegistry()
    PlatformCollector(registry=registry)
    text = generate_latest(registry)
    shown = AllProcesses(registry, lambda: {"0": text})
    assert generate_latest(shown) == generate_latest(shown) and generate_latest(shown).count(b"\npython_info{") == 2
