"""`health`: whether the server is ready."""

import argparse
import sys
import time
from typing import TYPE_CHECKING

from clients.cli.command import Command
from clients.cli.exit_code import ExitCode
from clients.cli.flags.connection import open_client
from pypto_serving.process.argument_types import seconds

if TYPE_CHECKING:
    from clients.client import Client

_POLL_SECONDS = 0.2


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", type=seconds, default=0.0, metavar="SECONDS", help="wait until it serves, at most so long")


def _run(arguments: argparse.Namespace) -> int:
    deadline = time.monotonic() + arguments.wait
    if arguments.wait:
        arguments.connect_seconds = 0.0
    with open_client(arguments) as client:
        is_serving = _is_serving(client, deadline)
        while not is_serving and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            is_serving = _is_serving(client, deadline)
        print("SERVING" if is_serving else "NOT_SERVING")
        if not is_serving:
            print(_reason(client), file=sys.stderr)
    return ExitCode.OK if is_serving else ExitCode.FAILED


def _reason(client: "Client") -> str:
    """Why the server does not serve, as far as it tells: it may ask for a key, or end just now."""
    from clients.errors import ServingError

    try:
        server = client.server()
    except ServingError as error:
        return f"the server does not say why: {error}"
    if server.draining:
        return "the server is about to stop: it lets what runs finish and takes no new requests"
    if not server.num_workers:
        return "the server has no worker: start one with `make serve-worker`"
    return f"none of the server's workers ({server.num_workers}) answers"


def _is_serving(client: "Client", deadline: float) -> bool:
    from clients.errors import ServerUnreachable

    try:
        return client.is_serving()
    except ServerUnreachable:
        if time.monotonic() >= deadline:
            raise
        return False


COMMAND = Command("health", "say whether the server is ready", _add_arguments, _run)
