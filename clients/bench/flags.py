"""Flags of the load generator: what they are, and what they must not say."""

import argparse
from dataclasses import fields
from pathlib import Path

from clients.bench.arrivals import Process, Trace, read_trace
from clients.bench.goodput import Limits
from clients.cli.command import UsageError
from pypto_serving.process.argument_types import between, number, positive_seconds, seconds

DEFAULT_CONCURRENCY = (1, 8, 32)
DEFINITIONS = """TTFT: from sending a request to its first token. ITL: the gap between two streamed tokens.
TPOT: (end to end - TTFT) / (tokens - 1).
Rates run from the first request sent to the last one ended. Failed requests are counted apart and are in no figure.
Goodput: requests per second that end well and meet every limit; e2el is end to end."""
_LIMITS = tuple(limit.name for limit in fields(Limits))
_MIN_BURSTINESS, _MAX_BURSTINESS = 0.01, 1.0
_MAX_PROCESSES, _MAX_CHANNELS = 64, 1024
_PLOTS = (".png", ".svg", ".pdf")


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all but the flags of the connection."""
    _add_load_arguments(parser.add_argument_group("load"))
    _add_request_arguments(parser.add_argument_group("requests"))
    _add_outcome_arguments(parser.add_argument_group("outcome"))


def _add_load_arguments(load: "argparse._ArgumentGroup") -> None:
    load.add_argument("--concurrency", type=_counts, metavar="N,..", help="streams, one level each (1,8,32)")
    load.add_argument(
        "--rate",
        type=_rates,
        metavar="R,..",
        help="instead: requests per second at random times, however many are in flight, one level each",
    )
    load.add_argument("--arrivals", choices=tuple(map(str, Process)), help="how those times are distributed (poisson)")
    load.add_argument(
        "--burstiness",
        type=number,
        metavar="X",
        help="gamma shape of the gaps of bursty arrivals; 1 is Poisson, less is burstier (0.25)",
    )
    load.add_argument("--trace", type=_trace, metavar="FILE", help="instead: replay JSON lines of at_seconds, prompt_tokens and max_tokens")
    load.add_argument("--requests", type=int, metavar="N", help="measured requests per level (4 x concurrency, at least 8; all of a trace)")
    load.add_argument(
        "--warmup",
        type=int,
        metavar="N",
        help="requests before each level that are not measured (as many as streams, and at least one for each connection)",
    )
    load.add_argument("--max-seconds", type=seconds, default=600.0, metavar="S", help="no new request of a level after that (%(default)s)")
    load.add_argument("--timeout", type=positive_seconds, default=600.0, metavar="S", help="a request fails after this time (%(default)s)")
    load.add_argument(
        "--processes", type=between(1, _MAX_PROCESSES), default=1, metavar="N", help="processes that share the load (%(default)s)"
    )
    load.add_argument(
        "--channels", type=between(1, _MAX_CHANNELS), default=1, metavar="N", help="connections of each process (%(default)s)"
    )


def _add_request_arguments(lengths: "argparse._ArgumentGroup") -> None:
    lengths.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="tokens of each prompt (%(default)s)")
    lengths.add_argument("--max-tokens", type=int, default=64, metavar="N", help="tokens of each answer, never fewer (%(default)s)")
    lengths.add_argument("--shared-prefix", type=int, default=0, metavar="N", help="prompt tokens that are the same in all (%(default)s)")
    lengths.add_argument("--temperature", type=number, default=0.0, metavar="X", help="%(default)s")
    lengths.add_argument("--seed", type=int, default=0, metavar="N", help="other seeds give other prompts and arrivals (%(default)s)")


def _add_outcome_arguments(outcome: "argparse._ArgumentGroup") -> None:
    outcome.add_argument("--metrics", metavar="URL", help="the server's Prometheus endpoint: counts must agree, or the exit status is 1")
    outcome.add_argument(
        "--goodput",
        type=_limit,
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help=f"limits of goodput: {', '.join(_LIMITS)}, as in ttft_ms:200",
    )
    outcome.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    outcome.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="also draw the levels: latency against throughput, goodput against rate"
    )


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers above 0")
    return tuple(map(int, parts))


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(map(number, text.split(",")))
    for rate in rates:
        if rate <= 0:
            raise argparse.ArgumentTypeError(f"{rate:g} is not above 0")
    return rates


def _trace(text: str) -> Trace:
    try:
        return read_trace(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name not in _LIMITS:
        raise argparse.ArgumentTypeError(f"{text}: the limits are {', '.join(_LIMITS)}, each as NAME:MILLISECONDS")
    milliseconds = number(value)
    if milliseconds <= 0:
        raise argparse.ArgumentTypeError(f"{text}: {value} is not above 0")
    return name, milliseconds


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for flags that do not fit each other, or what there is."""
    for name in ("requests", "prompt_tokens", "max_tokens"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')}: {value} is not above 0")
    longest = max(prompt_tokens for prompt_tokens, _ in lengths(arguments))
    if not 0 <= arguments.shared_prefix <= longest:
        flag = "the longest prompt of --trace," if arguments.trace else "--prompt-tokens"
        raise UsageError(f"--shared-prefix: {arguments.shared_prefix} is not within {flag} {longest}")
    _check_arrivals(arguments)
    names = [name for name, _ in arguments.goodput]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--goodput: {name} is given {names.count(name)} times")
    _check_outcome(arguments)


def _check_arrivals(arguments: argparse.Namespace) -> None:
    if arguments.trace is not None and arguments.rate is not None:
        raise UsageError("--rate and --trace, which has its own times, exclude each other")
    if arguments.concurrency is not None and (arguments.rate or arguments.trace):
        raise UsageError(f"--concurrency and {'--rate' if arguments.rate else '--trace'}, which sends at its times, exclude each other")
    first = arguments.trace.requests[0].at_seconds if arguments.trace else 0.0
    if first > arguments.max_seconds:
        raise UsageError(f"--max-seconds: {arguments.max_seconds:g} is before the first request of --trace, at {first:g}")
    if arguments.arrivals is not None and arguments.rate is None:
        raise UsageError(f"--arrivals: {arguments.arrivals} needs a --rate")
    if arguments.burstiness is None:
        return
    if arguments.arrivals != Process.BURSTY:
        raise UsageError(f"--burstiness: {arguments.burstiness:g} is of --arrivals {Process.BURSTY} only")
    if not _MIN_BURSTINESS <= arguments.burstiness <= _MAX_BURSTINESS:
        raise UsageError(f"--burstiness: {arguments.burstiness:g} is not a number from {_MIN_BURSTINESS:g} to {_MAX_BURSTINESS:g}")


def _check_outcome(arguments: argparse.Namespace) -> None:
    for flag, path in {"--json": arguments.json, "--plot": arguments.plot}.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{flag}: there is no directory {path.parent}")
    if arguments.plot is None:
        return
    if arguments.plot.suffix not in _PLOTS:
        raise UsageError(f"--plot: {arguments.plot} does not end in {', '.join(_PLOTS)}")
    from clients.bench.plot import check_matplotlib

    check_matplotlib()


def lengths(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Tokens of prompts and answers that are asked for."""
    trace: Trace | None = arguments.trace
    return trace.lengths if trace else [(arguments.prompt_tokens, arguments.max_tokens)]
