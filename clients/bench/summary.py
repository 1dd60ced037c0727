"""What the timelines of one load level amount to, as figures and as text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clients.bench.goodput import Goodput, Limits
from clients.bench.server_counts import TokenCounts
from clients.bench.timeline import Timeline

#: An open loop that sends later than that, at p99, offers another load than it was asked for.
_MAX_LATENESS_SECONDS = 0.010


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles in seconds, linearly interpolated."""

    p50: float
    p95: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution | None":
        """None without values."""
        if not values:
            return None
        p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
        return cls(p50, p95, p99, float(np.mean(values)))


@dataclass(frozen=True, slots=True)
class Summary:
    """One load level. Times and rates are those of requests that ended well, `received` counts the tokens of all.

    `lateness` is the load generator's own, of sending all requests; None in closed loop. `num_unsent`: left out as their time had passed.
    """

    level: str
    num_requests: int
    failures: dict[str, int]
    seconds: float
    received: TokenCounts
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    first_token: Distribution | None
    per_token: Distribution | None
    gap: Distribution | None
    end_to_end: Distribution | None
    lateness: Distribution | None = None
    goodput: Goodput | None = None
    num_unsent: int = 0

    @property
    def num_failures(self) -> int:
        return sum(self.failures.values())


def summarize(level: str, timelines: Sequence[Timeline], limits: Limits | None = None, num_unsent: int = 0) -> Summary:
    """Summarize a level of at least one request; its time runs from the first request sent to the last one ended."""
    good = [timeline for timeline in timelines if not timeline.failure]
    seconds = max(timeline.ended_at for timeline in timelines) - min(timeline.started_at for timeline in timelines)
    output_tokens = sum(timeline.num_tokens for timeline in good)
    prompt_tokens = sum(timeline.prompt_tokens for timeline in good)
    num_in_time = sum(limits.are_met_by(timeline) for timeline in good) if limits else 0
    return Summary(
        level=level,
        num_requests=len(timelines),
        failures=dict(Counter(timeline.failure for timeline in timelines if timeline.failure)),
        seconds=seconds,
        received=TokenCounts(prompt=prompt_tokens, generation=sum(timeline.num_tokens for timeline in timelines)),
        requests_per_second=len(good) / seconds,
        output_tokens_per_second=output_tokens / seconds,
        total_tokens_per_second=(output_tokens + prompt_tokens) / seconds,
        first_token=Distribution.of([timeline.first_token_seconds for timeline in good if timeline.token_times]),
        per_token=Distribution.of([timeline.seconds_per_token for timeline in good if timeline.seconds_per_token is not None]),
        gap=Distribution.of([gap for timeline in good for gap in timeline.gaps]),
        end_to_end=Distribution.of([timeline.end_to_end_seconds for timeline in good]),
        lateness=Distribution.of([timeline.lateness_seconds for timeline in timelines if timeline.lateness_seconds is not None]),
        goodput=Goodput(limits, num_in_time, num_in_time / seconds) if limits else None,
        num_unsent=num_unsent,
    )


def table(summary: Summary) -> str:
    """One level as text."""
    lines = [
        f"{summary.level}: {summary.num_requests} requests in {summary.seconds:.2f} s, {summary.num_failures} failed; "
        f"{summary.requests_per_second:.2f} requests/s, {summary.output_tokens_per_second:.1f} output tokens/s, "
        f"{summary.total_tokens_per_second:.1f} tokens/s with prompts",
        f"  {'ms':18}{'p50':>10}{'p95':>10}{'p99':>10}{'mean':>10}",
        _row("TTFT", summary.first_token),
        _row("TPOT", summary.per_token),
        _row("ITL", summary.gap),
        _row("end to end", summary.end_to_end),
    ]
    if goodput := summary.goodput:
        within = f"{goodput.num_requests} of {summary.num_requests} requests within {goodput.limits}"
        lines.append(f"  goodput {goodput.requests_per_second:.2f} requests/s: {within}")
    if summary.lateness and summary.lateness.p99 > _MAX_LATENESS_SECONDS:
        late = f"{summary.lateness.p50 * 1000:.1f} ms late at p50, {summary.lateness.p99 * 1000:.1f} ms at p99"
        lines.append(f"  schedule NOT kept: requests were sent {late} (limit {_MAX_LATENESS_SECONDS * 1000:.0f} ms)")
    if summary.num_unsent:
        lines.append(
            f"  cut short by --max-seconds: {summary.num_unsent} of {summary.num_requests + summary.num_unsent} requests were not sent"
        )
    lines += [f"  failed: {count} x {failure}" for failure, count in summary.failures.items()]
    return "\n".join(lines)


def _row(name: str, distribution: Distribution | None) -> str:
    if distribution is None:
        return f"  {name:18}{'-':>10}"
    values = (distribution.p50, distribution.p95, distribution.p99, distribution.mean)
    return f"  {name:18}" + "".join(f"{value * 1000:10.2f}" for value in values)


def comparison(received: TokenCounts, counted: TokenCounts) -> str:
    """The client's counts beside the server's."""
    if received == counted:
        return f"  counts agree with the server's: {received.prompt} prompt and {received.generation} generated tokens"
    return (
        f"  counts DIFFER: received {received.prompt} prompt and {received.generation} generated tokens, "
        f"the server counted {counted.prompt} and {counted.generation} (is there other traffic?)"
    )
