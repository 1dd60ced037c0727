"""Spans on their way to a collector."""

import asyncio
import time

from harness.collector import Collector

from pypto_serving.process.exported_span import ExportedSpan
from pypto_serving.process.span_export import SpanExport

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def span(**fields: object) -> ExportedSpan:
    return ExportedSpan(**{"name": "outer", "begin_ns": 1_000, "end_ns": 5_000, **fields})


async def exported(*spans: tuple[ExportedSpan, str]) -> Collector:
    async with Collector() as collector:
        export = SpanExport(collector.endpoint, "service")
        for each, traceparent in spans:
            export.export(each, traceparent)
        await asyncio.to_thread(export.close)
    return collector


async def test_a_span_continues_the_trace_of_its_request() -> None:
    inner = ExportedSpan("inner", 2_000, 3_000)
    found = await exported((span(children=[inner], attributes={"x": 1}), f"00-{TRACE}-{PARENT}-01"))
    [outer], [child] = found.named("outer"), found.named("inner")
    assert (outer.trace_id.hex(), outer.parent_span_id.hex(), child.parent_span_id) == (TRACE, PARENT, outer.span_id)
    assert child.trace_id == outer.trace_id
    assert outer.end_time_unix_nano - outer.start_time_unix_nano == 4_000
    assert child.start_time_unix_nano - outer.start_time_unix_nano == 1_000
    assert abs(outer.start_time_unix_nano - (time.time_ns() - time.monotonic_ns())) < 10**10
    assert found.services == {"service"}


async def test_one_that_is_not_recorded_is_not_sent_and_one_without_begins_a_trace() -> None:
    found = await exported((span(), f"00-{TRACE}-{PARENT}-00"), (span(), ""))
    [outer] = found.named("outer")
    assert outer.trace_id.hex() != TRACE and not outer.parent_span_id


async def test_a_failure_is_the_status() -> None:
    found = await exported((span(failure="cancelled"), ""))
    assert (found.spans[0].status.message, found.spans[0].status.code) == ("cancelled", 2)


def test_without_a_collector_nothing_waits() -> None:
    export = SpanExport("http://127.0.0.1:1", "service")
    for _ in range(20_000):
        export.export(span(), "")
    assert export._waiting.qsize() <= 4096
    export.close()


def test_every_span_that_gets_nowhere_is_counted() -> None:
    export = SpanExport("http://127.0.0.1:1", "service")
    export._exporter.shutdown()  # it gives up at once
    export.export(span(children=[span()]), "")
    export.export(span(), f"00-{TRACE}-{PARENT}-00")  # not recorded: nobody misses it
    export.close()
    assert export.num_dropped == 2


def test_what_cannot_wait_is_counted() -> None:
    export = SpanExport("http://127.0.0.1:1", "service")
    export.close()  # nobody takes spans out any more
    for _ in range(4096 + 10):
        export.export(span(children=[span()]), "")
    assert export.num_dropped == 20


async def test_many_are_sent_and_none_is_dropped() -> None:
    async with Collector() as collector:
        export = SpanExport(collector.endpoint, "service")
        for _ in range(2000):
            export.export(span(), "")
        await asyncio.to_thread(export.close)
    assert (len(collector.spans), export.num_dropped) == (2000, 0)
