import pytest

from clients.bench.goodput import Limits
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


@pytest.mark.parametrize(
    ("limits", "num_requests"),
    [
        (Limits(ttft_ms=1000), 2),
        (Limits(ttft_ms=999), 0),
        (Limits(tpot_ms=500), 2),
        (Limits(ttft_ms=1000, tpot_ms=500), 1),
        (Limits(e2el_ms=2000), 3),
        (Limits(e2el_ms=1999), 1),
    ],
)
def test_goodput_counts_requests_that_meet_every_limit(limits, num_requests):
    slow_tokens, late_first, single = timeline(0.0, 1.0, 2.0), timeline(0.0, 1.5, 2.0), timeline(0.0, 1.0)
    failed = timeline(0.0, 0.1, 0.2, failure="ABORTED")
    goodput = summarize("c", [slow_tokens, late_first, single, failed], limits).goodput
    assert (goodput.num_requests, goodput.requests_per_second) == (num_requests, num_requests / 2.0)


def test_goodput_is_shown_with_its_limits_and_absent_without_them():
    text = table(summarize("c", [timeline(0.0, 1.0, 2.0), timeline(0.0, 1.5, 2.0)], Limits(ttft_ms=1200, tpot_ms=1000)))
    assert "goodput 0.50 requests/s: 1 of 2 requests within ttft_ms:1200 tpot_ms:1000" in text
    assert "goodput" not in table(summarize("c", [timeline(0.0, 1.0)]))


@pytest.mark.parametrize(("lateness", "said"), [(None, False), (0.009, False), (0.05, True)])
def test_schedule_that_was_not_kept_is_said(lateness, said):
    late = timeline(0.0, 1.0)
    late.lateness_seconds = lateness
    assert ("schedule NOT kept: requests were sent 50.0 ms late at p50" in table(summarize("c", [late]))) == said


def test_level_that_was_cut_short_says_so():
    assert "cut short by --max-seconds: 3 of 4 requests were not sent" in table(summarize("c", [timeline(0.0, 1.0)], num_unsent=3))
    assert "cut short" not in table(summarize("c", [timeline(0.0, 1.0)]))


def test_only_failures_leave_no_distribution():
    summary = summarize("c", [timeline(1.0, 2.0, failure="ABORTED")])
    assert summary.first_token is None and summary.output_tokens_per_second == 0
    assert "TTFT" in table(summary)


@pytest.mark.parametrize(("counted", "word"), [(TokenCounts(1, 2), "agree"), (TokenCounts(1, 3), "DIFFER")])
def test_comparison_says_whether_counts_agree(counted, word):
    assert word in comparison(TokenCounts(1, 2), counted)
