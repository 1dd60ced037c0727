"""Shows the outcome."""

from clients.bench.server_counts import TokenCounts
from clients.bench.summary import Distribution, Summary


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
