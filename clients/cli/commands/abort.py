"""`abort`: end a live request."""

import argparse

from clients.cli.command import Command
from clients.cli.exit_code import ExitCode
from clients.cli.flags.connection import open_client


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request_id", help="exact id of the request")


def _run(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        was_live = client.abort(arguments.request_id)
    print("aborted" if was_live else "was not live")
    return ExitCode.OK


COMMAND = Command("abort", "end a live request", _add_arguments, _run)
