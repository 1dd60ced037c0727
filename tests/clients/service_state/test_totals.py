"""Counters over time, held to sums and to the standard library's quantiles."""

import math
import random
import statistics
from bisect import bisect_left

import pytest

from clients.service_state.exposition import parse
from clients.service_state.totals import Totals, quantile

TTFT = "time_to_first_token_seconds"


def scraped(**values):
    """Samples of counters by name."""
    return parse("".join(f"pypto_serving_{name}_total {value}\n" for name, value in values.items()))


def ttft(*counts):
    """Samples of a histogram with the bounds 1 and 2 s."""
    lines = zip(("1.0", "2.0", "+Inf"), counts, strict=True)
    return parse("".join(f'pypto_serving_{TTFT}_bucket{{le="{bound}"}} {count}\n' for bound, count in lines))


def test_what_was_counted_before_the_first_reading_is_not_recent():
    totals = Totals()
    totals.add(0.0, {"a": scraped(preemptions=7)})
    assert totals.recent("preemptions_total") == 0
    totals.add(1.0, {"a": scraped(preemptions=9)})
    assert totals.recent("preemptions_total") == 2


def test_a_process_that_restarts_counts_from_zero():
    totals = Totals()
    for at, value in enumerate((50, 53, 2)):
        totals.add(at, {"a": scraped(preemptions=value)})
    assert totals.recent("preemptions_total") == 3 + 2
    assert totals.counts("preemptions_total")[0].total == 2


def test_processes_are_summed_and_one_that_is_silent_loses_nothing():
    totals = Totals()
    totals.add(0.0, {"a": scraped(preemptions=1), "b": scraped(preemptions=10)})
    totals.add(1.0, {"a": scraped(preemptions=2)})
    totals.add(2.0, {"a": scraped(preemptions=2), "b": scraped(preemptions=14)})
    assert totals.recent("preemptions_total") == 1 + 4
    assert totals.counts("preemptions_total")[0].total == 16


def test_a_process_that_is_new_brings_no_rise_with_it():
    totals = Totals()
    totals.add(0.0, {"a": scraped(preemptions=1)})
    totals.add(1.0, {"a": scraped(preemptions=1), "b": scraped(preemptions=1000)})
    assert totals.recent("preemptions_total") == 0


def test_what_lies_more_than_a_minute_back_is_forgotten():
    totals = Totals()
    for at in range(200):
        totals.add(float(at), {"a": scraped(preemptions=at)})
    assert totals.recent("preemptions_total") == 60
    assert len(totals._history) == 61


def test_rates_are_those_between_the_last_two_readings():
    totals = Totals()
    totals.add(0.0, {"a": scraped(prompt_tokens=0, generation_tokens=0)})
    assert totals.rates() is None
    totals.add(9.0, {"a": scraped(prompt_tokens=0, generation_tokens=900)})
    totals.add(11.0, {"a": scraped(prompt_tokens=50, generation_tokens=940)})
    rates = totals.rates()
    assert (rates.span_seconds, rates.prompt_tokens, rates.generation_tokens, rates.requests) == (2.0, 25.0, 20.0, 0.0)


def test_readings_more_than_a_minute_apart_have_no_rate():
    totals = Totals()
    totals.add(0.0, {"a": scraped(preemptions=0)})
    totals.add(61.0, {"a": scraped(preemptions=5)})
    assert totals.rates() is None and totals.recent("preemptions_total") == 0


def test_percentiles_are_those_of_the_last_minute():
    totals = Totals()
    totals.add(0.0, {"a": ttft(1000, 1000, 1000)})
    assert totals.percentiles(TTFT) is None
    totals.add(1.0, {"a": ttft(1000, 1010, 1010)})
    told = totals.percentiles(TTFT)
    assert (told.count, told.p50) == (10, 1.5) and told.p99 == pytest.approx(1.99)


def test_a_count_says_how_long_ago_it_rose():
    totals = Totals()
    for at, value in ((0.0, 4), (1.0, 5), (8.0, 5)):
        totals.add(at, {"a": scraped(preemptions=value)})
    (count,) = totals.counts("preemptions_total")
    assert (count.total, count.recent, count.seconds_ago) == (5, 1, 7.0)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99])
def test_a_quantile_is_that_of_the_values_to_the_width_of_a_bucket(share):
    values = [random.Random(5).lognormvariate(0, 1) for _ in range(500)]
    bounds = [2.0 ** (exponent / 4) for exponent in range(-24, 24)] + [math.inf]
    counts = [0] * len(bounds)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    buckets = [(bound, float(sum(counts[: index + 1]))) for index, bound in enumerate(bounds)]
    exact = statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
    assert exact / 2**0.25 <= quantile(buckets, share) <= exact * 2**0.25


def test_what_lies_beyond_all_bounds_is_told_as_the_last_one():
    assert quantile([(1.0, 0.0), (2.0, 0.0), (math.inf, 3.0)], 0.5) == 2.0
