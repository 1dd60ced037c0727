import pytest

from clients.bench.server_counts import TokenCounts
from clients.bench.summary import Distribution, comparison, summarize, table
from clients.bench.timeline import Timeline


def timeline(start, *token_times, failure=""):
    return Timeline(start, list(token_times), token_times[-1] if token_times else start, prompt_tokens=10, failure=failure)


def test_percentiles_are_interpolated():
    distribution = Distribution.of([float(value) for value in range(101)])
    assert (distribution.p50, distribution.p95, distribution.p99, distribution.mean) == (50, 95, 99, 50)


def test_rates_run_from_the_first_start_to_the_last_end():
    summary = summarize("c", [timeline(1.0, 2.0, 3.0), timeline(2.0, 3.0, 4.0, 5.0)])
    assert summary.seconds == 4.0
    assert (summary.requests_per_second, summary.output_tokens_per_second, summary.total_tokens_per_second) == (0.5, 1.25, 6.25)
    assert summary.first_token.mean == 1.0
    assert summary.gap.mean == 1.0
    assert summary.end_to_end.mean == 2.5


def test_failures_are_apart_but_their_tokens_are_counted():
    summary = summarize("c", [timeline(1.0, 2.0, 3.0), timeline(1.0, 9.0, failure="ABORTED")])
    assert (summary.num_failures, summary.failures) == (1, {"ABORTED": 1})
    assert summary.first_token.p99 == 1.0
    assert summary.received == TokenCounts(prompt=10, generation=3)
    assert "1 x ABORTED" in table(summary)


def test_only_failures_leave_no_distribution():
    summary = summarize("c", [timeline(1.0, 2.0, failure="ABORTED")])
    assert summary.first_token is None and summary.output_tokens_per_second == 0
    assert "TTFT" in table(summary)


@pytest.mark.parametrize(("counted", "word"), [(TokenCounts(1, 2), "agree"), (TokenCounts(1, 3), "DIFFER")])
def test_comparison_says_whether_counts_agree(counted, word):
    assert word in comparison(TokenCounts(1, 2), counted)
