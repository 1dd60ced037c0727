"""`bench`: load a running server and measure it."""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from clients.bench.arrivals import Arrivals, Process, Trace
from clients.bench.flags import DEFAULT_CONCURRENCY, DEFINITIONS, add_bench_arguments, check, lengths
from clients.bench.goodput import Limits
from clients.cli.command import Command, ExitCode, UsageError, writes
from clients.cli.connection_flags import credentials, targets

if TYPE_CHECKING:
    from clients.bench.load import Workload
    from clients.bench.sweep import Level, LevelOutcome
    from clients.results import Model, Server


class Bench(Command):
    """Prints the figures of each load level; fails if a request did, or counts differ."""

    name = "bench"
    summary = "load a running server and measure it"
    examples = ("--concurrency 1,8,32", "--rate 2,4,8 --goodput ttft_ms:500 tpot_ms:50")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = f"{DEFINITIONS}\n\n{parser.epilog}"
        add_bench_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        check(arguments)
        from clients.bench.generator import loop_factory

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            outcomes = runner.run(_measure(arguments))
        return ExitCode.OK if all(outcome.is_good for outcome in outcomes) else ExitCode.FAILED


async def _measure(arguments: argparse.Namespace) -> "list[LevelOutcome]":
    from clients.async_client import AsyncClient

    shown = credentials(arguments)
    async with AsyncClient(targets(arguments), connect_seconds=arguments.connect_seconds, credentials=shown) as control:
        (model, *_), server = await control.models(), await control.server()
    _check_lengths(arguments, model)
    workload = _workload(arguments)
    asked = f"{workload.prompt_tokens} prompt tokens, {workload.max_tokens} generated"
    title = f"{model.name}, {server.num_workers} workers, {arguments.trace.name if arguments.trace else asked}"
    print(title)
    outcomes = await _run_levels(arguments, model, workload)
    if arguments.json is not None:
        with writes("--json", arguments.json):
            arguments.json.write_text(json.dumps(_report(arguments, model, server, outcomes), indent=2) + "\n")
    if arguments.plot is not None:
        from clients.bench.plot import panels, write_plot

        with writes("--plot", arguments.plot):
            write_plot(arguments.plot, title, panels(outcomes))
    return outcomes


async def _run_levels(arguments: argparse.Namespace, model: "Model", workload: "Workload") -> "list[LevelOutcome]":
    from clients.bench.generator import Connections, open_generator
    from clients.bench.server_counts import CountsUnreadable
    from clients.bench.summary import comparison, table
    from clients.bench.sweep import Sweep

    connections = Connections(targets(arguments), credentials(arguments), arguments.channels)
    limits = Limits(**dict(arguments.goodput)) if arguments.goodput else None
    outcomes: list[LevelOutcome] = []
    async with open_generator(connections, arguments.processes) as generator:
        try:
            async for outcome in Sweep(generator, model, workload, arguments.metrics, limits).run(_levels(arguments)):
                print(table(outcome.summary))
                if outcome.counted is not None:
                    print(comparison(outcome.summary.received, outcome.counted))
                sys.stdout.flush()
                outcomes.append(outcome)
        except CountsUnreadable as error:
            raise UsageError(f"--metrics: {error}") from error
    return outcomes


def _report(arguments: argparse.Namespace, model: "Model", server: "Server", outcomes: "list[LevelOutcome]") -> dict[str, object]:
    asked = asdict(_workload(arguments)) | {"processes": arguments.processes, "channels": arguments.channels}
    if arguments.trace:
        asked |= {"trace": arguments.trace.file_name, "prompt_tokens": None, "max_tokens": None}
    return {"model": asdict(model), "server": asdict(server), "workload": asked, "levels": list(map(asdict, outcomes))}


def _check_lengths(arguments: argparse.Namespace, model: "Model") -> None:
    longest = max(map(sum, lengths(arguments)))
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

    num_connections = arguments.processes * arguments.channels

    def level(concurrency: int, schedule: Arrivals | Trace | None = None) -> Level:
        num_requests = arguments.requests or max(8, 4 * concurrency)
        if arguments.trace:
            num_requests = min(arguments.requests or len(arguments.trace.requests), len(arguments.trace.requests))
        num_warm_up = max(concurrency, num_connections) if arguments.warmup is None else arguments.warmup
        return Level(num_requests, num_warm_up, arguments.max_seconds, concurrency, schedule)

    if arguments.trace is not None:
        return [level(1, arguments.trace)]
    if arguments.rate is not None:
        return [level(1, _arrivals(arguments, rate)) for rate in arguments.rate]
    return [level(concurrency) for concurrency in arguments.concurrency or DEFAULT_CONCURRENCY]


def _arrivals(arguments: argparse.Namespace, rate: float) -> Arrivals:
    details = {} if arguments.burstiness is None else {"burstiness": arguments.burstiness}
    return Arrivals(rate, Process(arguments.arrivals or Process.POISSON), seed=arguments.seed, **details)
