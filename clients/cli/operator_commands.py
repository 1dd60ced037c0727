"""`state`, `top`, `drain` and `reset-cache`: what operators ask of a service."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from clients.cli.admin_calls import SECONDS, admin_calls
from clients.cli.command import Command, ExitCode, UsageError
from clients.cli.connection_flags import credentials, targets
from clients.cli.explanation import exit_code, explanation
from pypto_serving.process.argument_types import number_between

if TYPE_CHECKING:
    from clients.errors import ServingError
    from clients.service_state.observer import Reading
    from clients.service_state.reader import ServiceReader
    from clients.service_state.state import ServiceState

_RATE_SECONDS = 0.5
_METRICS_URL = "http://127.0.0.1:9400/metrics"


class OperatorCommand(Command):
    """Speaks to the admin service."""

    is_for_operators = True


class Drain(OperatorCommand):
    """Lets a control plane finish what runs, and end."""

    name = "drain"
    summary = "let a control plane finish what runs and then end, as SIGTERM does"
    examples = ("--target 127.0.0.1:50055",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, arguments: argparse.Namespace) -> int:
        from pypto_serving.admin.v1 import admin_pb2

        with admin_calls(arguments) as calls:
            answer = calls.stub.Drain(admin_pb2.DrainRequest(), timeout=SECONDS, metadata=calls.metadata)
        print(f"draining; calls that have not ended: {answer.num_running}")
        return ExitCode.OK


class ResetCache(OperatorCommand):
    """Forgets cached prefixes."""

    name = "reset-cache"
    summary = "forget the cached prefixes that no request uses"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, arguments: argparse.Namespace) -> int:
        from pypto_serving.admin.v1 import admin_pb2

        with admin_calls(arguments) as calls:
            answer = calls.stub.ResetPrefixCache(admin_pb2.ResetPrefixCacheRequest(), timeout=SECONDS, metadata=calls.metadata)
        print(f"pages that are free now: {answer.num_pages}")
        return ExitCode.OK


class State(OperatorCommand):
    """Prints what a service does now."""

    name = "state"
    summary = "show workers, queue, pages and rates of a service, once"
    examples = ("--json", "--target 10.0.0.5:50055 --metrics-url http://10.0.0.5:9400/metrics")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_metrics_argument(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def run(self, arguments: argparse.Namespace) -> int:
        from clients.cli.service_view import lines

        state, errors = asyncio.run(_first_state(arguments))
        shown = state if state.control_planes else replace(state, failures=_without(state.failures, errors))
        print(json.dumps(asdict(state)) if arguments.json else "\n".join(lines(shown)))
        if state.control_planes:
            return ExitCode.OK
        for target in errors:
            print(f"error: {state.failures[target]}", file=sys.stderr)
        return max(map(exit_code, errors.values()))


def _without(failures: Mapping[str, str], sources: Container[str]) -> dict[str, str]:
    return {source: why for source, why in failures.items() if source not in sources}


class Top(OperatorCommand):
    """Shows it again and again."""

    name = "top"
    summary = "watch workers, queue, pages and rates of a service"
    examples = ("--interval 0.5",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_metrics_argument(parser)
        parser.add_argument(
            "--interval", type=number_between(0.1, 60.0), default=1.0, metavar="S", help="seconds between looks (%(default)s)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        if not sys.stdout.isatty():
            raise UsageError("top: standard output is no terminal; `state` prints the same once")
        if find_spec("rich") is None:
            raise UsageError("top: no package 'rich' here: pip install 'pypto-serving[client]'")
        asyncio.run(_watch(arguments))
        return ExitCode.OK


def _add_metrics_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-url",
        type=_url,
        action="append",
        metavar="URL",
        help=f"metrics of a control plane, for rates and times; repeat for several processes ({_METRICS_URL} where no --target is given)",
    )


def _url(text: str) -> str:
    from clients.service_state.exposition import metrics_url  # not for --help

    try:
        return metrics_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@asynccontextmanager
async def _reader(arguments: argparse.Namespace) -> "AsyncIterator[ServiceReader]":
    from clients.service_state.reader import ServiceReader

    urls = arguments.metrics_url or ([] if arguments.target else [_METRICS_URL])
    reader = ServiceReader(targets(arguments), urls, credentials(arguments))
    try:
        yield reader
    finally:
        await reader.close()


async def _first_state(arguments: argparse.Namespace) -> "tuple[ServiceState, Mapping[str, ServingError]]":
    """With rates, which are those of half a second, where metrics can be read; and why admin services do not answer, by address."""
    from clients.service_state.observer import ServiceObserver

    observer = ServiceObserver()
    async with _reader(arguments) as reader:
        reading = await reader.read()
        state = observer.observe(_explained(reading, arguments))
        if state.activity is not None:
            await asyncio.sleep(_RATE_SECONDS)
            reading = await reader.read()
            state = observer.observe(_explained(reading, arguments))
    return state, reading.errors


def _explained(reading: "Reading", arguments: argparse.Namespace) -> "Reading":
    """With what failed in words for whoever looks."""
    failures = {target: explanation(error, [target], arguments) for target, error in reading.errors.items()}
    return replace(reading, failures={**reading.failures, **failures})


async def _watch(arguments: argparse.Namespace) -> None:
    from rich.live import Live

    from clients.cli.service_view import tables
    from clients.service_state.observer import ServiceObserver

    observer = ServiceObserver()
    async with _reader(arguments) as reader:
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(tables(observer.observe(_explained(await reader.read(), arguments))), refresh=True)
                await asyncio.sleep(arguments.interval)
