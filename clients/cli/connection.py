"""Flags that say which server to talk to, and the client that they describe."""

import argparse
from typing import TYPE_CHECKING

from pypto_serving.process.argument_types import seconds

if TYPE_CHECKING:
    from clients.client import Client


def add_connection_arguments(parser: argparse.ArgumentParser, default_targets: str, connect_seconds: float = 2.0) -> None:
    """Add --target, --connect-seconds and --resume-seconds; `default_targets` is a comma-separated list."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--target",
        action="append",
        metavar="HOST:PORT",
        help=f"server; repeat for servers that stand in for each other (PYPTO_SERVING_TARGET, default {default_targets})",
    )
    group.add_argument(
        "--connect-seconds",
        type=seconds,
        default=connect_seconds,
        metavar="S",
        help="give up reaching a server after that (%(default)s)",
    )
    group.add_argument("--resume-seconds", type=seconds, default=60.0, metavar="S", help="give up a broken stream after that (%(default)s)")
    parser.set_defaults(default_targets=default_targets)


def targets(arguments: argparse.Namespace) -> list[str]:
    """Addresses in the order in which they are tried."""
    given: list[str] = arguments.target or [arguments.default_targets]
    return [address.strip() for entry in given for address in entry.split(",") if address.strip()]


def open_client(arguments: argparse.Namespace) -> "Client":
    """The client; close it."""
    from clients.client import Client

    return Client(targets(arguments), connect_seconds=arguments.connect_seconds, resume_seconds=arguments.resume_seconds)
