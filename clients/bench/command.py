"""`bench`: load a running server and measure it."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from clients.cli.command import Command, ExitCode, UsageError
from clients.cli.connection_flags import credentials, targets
from pypto_serving.process.argument_types import number, positive_seconds, seconds

if TYPE_CHECKING:
    from clients.bench.load import Workload
    from clients.bench.sweep import Level, LevelOutcome

_DEFINITIONS = """TTFT: from sending a request to its first token. ITL: the gap between two streamed tokens.
TPOT: (end to end - TTFT) / (tokens - 1).
Rates run from the first request sent to the last one ended. Failed requests are counted apart and are in no figure."""


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
        load.add_argument("--requests", type=int, metavar="N", help="measured requests per level (4 x concurrency, at least 8)")
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
    if not 0 <= arguments.shared_prefix <= arguments.prompt_tokens:
        raise UsageError(f"--shared-prefix: {arguments.shared_prefix} is not within --prompt-tokens {arguments.prompt_tokens}")


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
        length = workload.prompt_tokens + workload.max_tokens
        if model.max_model_len and length > model.max_model_len:
            raise UsageError(f"--prompt-tokens + --max-tokens: {length} is above the model's {model.max_model_len}")
        print(f"{model.name}, {server.num_workers} workers, {workload.prompt_tokens} prompt tokens, {workload.max_tokens} generated")
        try:
            async for outcome in Sweep(client, model, workload, arguments.metrics).run(_levels(arguments)):
                print(table(outcome.summary))
                if outcome.counted is not None:
                    print(comparison(outcome.summary.received, outcome.counted))
                sys.stdout.flush()
                outcomes.append(outcome)
        except (OSError, ValueError) as error:
            raise UsageError(f"--metrics: {arguments.metrics}: {error}") from error
    if arguments.json is not None:
        report = {"model": asdict(model), "server": asdict(server), "workload": asdict(workload), "levels": list(map(asdict, outcomes))}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return outcomes


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

    def level(concurrency: int) -> Level:
        num_requests = arguments.requests or max(8, 4 * concurrency)
        num_warm_up = concurrency if arguments.warmup is None else arguments.warmup
        return Level(num_requests, num_warm_up, arguments.max_seconds, concurrency, arguments.rate)

    return [level(1)] if arguments.rate is not None else [level(concurrency) for concurrency in arguments.concurrency]
