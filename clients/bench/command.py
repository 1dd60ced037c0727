"""`bench`: load a running server and measure it."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from clients.bench.arrivals import Arrivals, Process, Trace, read_trace
from clients.bench.goodput import Limits
from clients.cli.command import Command, ExitCode, UsageError
from clients.cli.connection_flags import credentials, targets
from pypto_serving.process.argument_types import number, positive_seconds, seconds

if TYPE_CHECKING:
    from clients.bench.load import Workload
    from clients.bench.sweep import Level, LevelOutcome
    from clients.results import Model

_DEFINITIONS = """TTFT: from sending a request to its first token. ITL: the gap between two streamed tokens.
TPOT: (end to end - TTFT) / (tokens - 1).
Rates run from the first request sent to the last one ended. Failed requests are counted apart and are in no figure.
Goodput: requests per second that end well and meet every limit; e2el is end to end."""
_LIMITS = tuple(limit.name for limit in fields(Limits))
_MIN_BURSTINESS, _MAX_BURSTINESS = 0.01, 1.0


class Bench(Command):
    """Prints the figures of each load level; fails if a request did, or counts differ."""

    name = "bench"
    summary = "load a running server and measure it"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = f"{_DEFINITIONS}\n\n{parser.epilog}"
        load = parser.add_argument_group("load")
        load.add_argument("--concurrency", type=_counts, default=(1, 8, 32), metavar="N,..", help="streams, one level each (1,8,32)")
        load.add_argument(
            "--rate", type=number, metavar="R", help="instead: R requests per second at random times, however many are in flight"
        )
        load.add_argument("--arrivals", choices=tuple(map(str, Process)), help="how those times are distributed (poisson)")
        load.add_argument(
            "--burstiness",
            type=number,
            metavar="X",
            help="gamma shape of the gaps of bursty arrivals; 1 is Poisson, less is burstier (0.25)",
        )
        load.add_argument(
            "--trace", type=_trace, metavar="FILE", help="instead: replay JSON lines of at_seconds, prompt_tokens and max_tokens"
        )
        load.add_argument(
            "--requests", type=int, metavar="N", help="measured requests per level (4 x concurrency, at least 8; all of a trace)"
        )
        load.add_argument("--warmup", type=int, metavar="N", help="requests before each level that are not measured (as many as streams)")
        load.add_argument(
            "--max-seconds", type=seconds, default=600.0, metavar="S", help="no new request of a level after that (%(default)s)"
        )
        load.add_argument(
            "--timeout", type=positive_seconds, default=600.0, metavar="S", help="a request fails after this time (%(default)s)"
        )
        lengths = parser.add_argument_group("requests")
        lengths.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="tokens of each prompt (%(default)s)")
        lengths.add_argument("--max-tokens", type=int, default=64, metavar="N", help="tokens of each answer, never fewer (%(default)s)")
        lengths.add_argument(
            "--shared-prefix", type=int, default=0, metavar="N", help="prompt tokens that are the same in all (%(default)s)"
        )
        lengths.add_argument("--temperature", type=number, default=0.0, metavar="X", help="%(default)s")
        lengths.add_argument("--seed", type=int, default=0, metavar="N", help="other seeds give other prompts and arrivals (%(default)s)")
        outcome = parser.add_argument_group("outcome")
        outcome.add_argument(
            "--metrics", metavar="URL", help="the server's Prometheus endpoint: counts must agree, or the exit status is 1"
        )
        outcome.add_argument(
            "--goodput",
            type=_limit,
            nargs="+",
            default=[],
            metavar="NAME:MS",
            help=f"limits of goodput: {', '.join(_LIMITS)}, as in ttft_ms:200",
        )
        outcome.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")

    def run(self, arguments: argparse.Namespace) -> int:
        _check(arguments)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            outcomes = runner.run(_measure(arguments))
        return ExitCode.OK if all(outcome.is_good for outcome in outcomes) else ExitCode.FAILED


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers above 0")
    return tuple(map(int, parts))


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


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory


def _check(arguments: argparse.Namespace) -> None:
    for name in ("requests", "prompt_tokens", "max_tokens", "rate"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')}: {value} is not above 0")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise UsageError(f"--json: there is no directory {arguments.json.parent}")
    longest = max(prompt_tokens for prompt_tokens, _ in _lengths(arguments))
    if not 0 <= arguments.shared_prefix <= longest:
        flag = "the longest prompt of --trace," if arguments.trace else "--prompt-tokens"
        raise UsageError(f"--shared-prefix: {arguments.shared_prefix} is not within {flag} {longest}")
    _check_arrivals(arguments)
    names = [name for name, _ in arguments.goodput]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--goodput: {name} is given {names.count(name)} times")


def _check_arrivals(arguments: argparse.Namespace) -> None:
    if arguments.trace is not None and arguments.rate is not None:
        raise UsageError(f"--rate: {arguments.rate:g} and a --trace, which has its own times, exclude each other")
    if arguments.arrivals is not None and arguments.rate is None:
        raise UsageError(f"--arrivals: {arguments.arrivals} needs a --rate")
    if arguments.burstiness is None:
        return
    if arguments.arrivals != Process.BURSTY:
        raise UsageError(f"--burstiness: {arguments.burstiness:g} is of --arrivals {Process.BURSTY} only")
    if not _MIN_BURSTINESS <= arguments.burstiness <= _MAX_BURSTINESS:
        raise UsageError(f"--burstiness: {arguments.burstiness:g} is not a number from {_MIN_BURSTINESS:g} to {_MAX_BURSTINESS:g}")


def _lengths(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    trace: Trace | None = arguments.trace
    return trace.lengths if trace else [(arguments.prompt_tokens, arguments.max_tokens)]


async def _measure(arguments: argparse.Namespace) -> "list[LevelOutcome]":
    from clients.async_client import AsyncClient
    from clients.bench.summary import comparison, table
    from clients.bench.sweep import Sweep

    workload, shown = _workload(arguments), credentials(arguments)
    outcomes: list[LevelOutcome] = []
    # A request that is tried again would be measured twice and reported as if nothing had happened.
    async with (
        AsyncClient(targets(arguments), connect_seconds=arguments.connect_seconds, credentials=shown) as control,
        AsyncClient(targets(arguments), connect_seconds=0.0, resume_seconds=0.0, credentials=shown) as client,
    ):
        (model, *_), server = await control.models(), await control.server()
        _check_lengths(arguments, model)
        lengths = f"{workload.prompt_tokens} prompt tokens, {workload.max_tokens} generated"
        print(f"{model.name}, {server.num_workers} workers, {arguments.trace.name if arguments.trace else lengths}")
        limits = Limits(**dict(arguments.goodput)) if arguments.goodput else None
        try:
            async for outcome in Sweep(client, model, workload, arguments.metrics, limits).run(_levels(arguments)):
                print(table(outcome.summary))
                if outcome.counted is not None:
                    print(comparison(outcome.summary.received, outcome.counted))
                sys.stdout.flush()
                outcomes.append(outcome)
        except (OSError, ValueError) as error:
            raise UsageError(f"--metrics: {arguments.metrics}: {error}") from error
    if arguments.json is not None:
        asked = asdict(workload)
        if arguments.trace:
            asked |= {"trace": arguments.trace.file_name, "prompt_tokens": None, "max_tokens": None}
        report = {"model": asdict(model), "server": asdict(server), "workload": asked, "levels": list(map(asdict, outcomes))}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return outcomes


def _check_lengths(arguments: argparse.Namespace, model: "Model") -> None:
    longest = max(map(sum, _lengths(arguments)))
    if model.max_model_len and longest > model.max_model_len:
        flags = "--trace: prompt_tokens + max_tokens" if arguments.trace else "--prompt-tokens + --max-tokens"
        raise UsageError(f"{flags}: {longest} is above the model's {model.max_model_len}")


def _workload(arguments: argparse.Namespace) -> "Workload":
    from clients.bench.load import Workload

    return Workload(
        arguments.prompt_tokens,
        arguments.max_tokens,
        arguments.shared_prefix,
        arguments.temperature,
        arguments.timeout,
        arguments.seed,
    )


def _levels(arguments: argparse.Namespace) -> "list[Level]":
    from clients.bench.sweep import Level

    schedule = _schedule(arguments)

    def level(concurrency: int) -> Level:
        num_requests = arguments.requests or max(8, 4 * concurrency)
        if arguments.trace:
            num_requests = min(arguments.requests or len(arguments.trace.requests), len(arguments.trace.requests))
        num_warm_up = concurrency if arguments.warmup is None else arguments.warmup
        return Level(num_requests, num_warm_up, arguments.max_seconds, concurrency, schedule)

    return [level(1)] if schedule is not None else [level(concurrency) for concurrency in arguments.concurrency]


def _schedule(arguments: argparse.Namespace) -> Arrivals | Trace | None:
    if arguments.rate is None:
        trace: Trace | None = arguments.trace
        return trace
    details = {} if arguments.burstiness is None else {"burstiness": arguments.burstiness}
    return Arrivals(arguments.rate, Process(arguments.arrivals or Process.POISSON), seed=arguments.seed, **details)
