"""Flags that say which server to talk to, and the client that they describe."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from clients.cli.command import UsageError
from pypto_serving.process.address import require_target
from pypto_serving.process.argument_types import seconds

if TYPE_CHECKING:
    from clients.client import Client
    from clients.connection import Credentials


#: Where clients' calls and those of operators go unless told otherwise, and what tells it in the environment.
TARGET = ("PYPTO_SERVING_TARGET", "127.0.0.1:50051")
ADMIN_TARGET = ("PYPTO_SERVING_ADMIN_TARGET", "127.0.0.1:50055")


def add_connection_arguments(
    parser: argparse.ArgumentParser, default_targets: str, connect_seconds: float = 2.0, is_for_operators: bool = False
) -> None:
    """Add the flags; `default_targets` is a comma-separated list."""
    server, variable = ("admin service", ADMIN_TARGET[0]) if is_for_operators else ("server", TARGET[0])
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--target",
        action="append",
        metavar="HOST:PORT",
        help=f"{server}; repeat for {server}s that stand in for each other ({variable}, default {default_targets})",
    )
    group.add_argument(
        "--connect-seconds",
        type=seconds,
        default=connect_seconds,
        metavar="S",
        help="give up reaching a server after that (%(default)s)",
    )
    group.add_argument("--resume-seconds", type=seconds, default=60.0, metavar="S", help="give up a broken stream after that (%(default)s)")
    _add_credential_arguments(group)
    parser.set_defaults(default_targets=default_targets, is_for_operators=is_for_operators)


def _add_credential_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--tls", action="store_true", help="speak TLS with a server whose certificate comes from a public authority")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="speak TLS; PEM certificates of the authority that the server's is from")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate to show to the server")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM key of --tls-cert, not encrypted")
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file with the key to show (PYPTO_SERVING_API_KEY: the key itself)"
    )


def targets(arguments: argparse.Namespace) -> list[str]:
    """Addresses in the order in which they are tried; raises UsageError for what is none."""
    given: list[str] = arguments.target or [arguments.default_targets]
    addresses = [address.strip() for entry in given for address in entry.split(",") if address.strip()]
    for address in addresses:
        try:
            require_target(address)
        except ValueError as error:
            variable, _ = ADMIN_TARGET if arguments.is_for_operators else TARGET
            raise UsageError(f"{'--target' if arguments.target else variable}: {error}") from None
    return addresses


def credentials(arguments: argparse.Namespace) -> "Credentials":
    """What to show to the server; raises UsageError for a file without a key, and for certificates that make no sense."""
    from clients.connection import Credentials
    from clients.errors import ServingError
    from pypto_serving.process.credentials.files import TlsFiles
    from pypto_serving.process.credentials.tls import watch_tls
    from pypto_serving.process.start_up import StartUpError

    path: Path | None = arguments.api_key_file
    api_key = arguments.default_api_key if path is None else _key_in(path)
    if (arguments.tls_cert is None) is not (arguments.tls_key is None):
        raise UsageError("--tls-cert and --tls-key are needed together")
    try:
        watch_tls("tls", TlsFiles(arguments.tls_cert, arguments.tls_key, arguments.tls_ca))
    except StartUpError as error:
        raise UsageError(f"--tls-ca, --tls-cert, --tls-key: {error}") from None
    shown = Credentials(arguments.tls, arguments.tls_ca, arguments.tls_cert, arguments.tls_key, api_key)
    try:
        shown.metadata()
    except ServingError:  # that of a file has been read
        raise UsageError("PYPTO_SERVING_API_KEY: a key consists of visible ASCII characters") from None
    return shown


def _key_in(path: Path) -> str:
    from pypto_serving.process.credentials.files import FileRefused, read_key

    try:
        return read_key(path)
    except FileRefused as error:
        raise UsageError(f"--api-key-file: {error}") from None


def open_client(arguments: argparse.Namespace) -> "Client":
    """The client; close it."""
    from clients.client import Client

    return Client(
        targets(arguments),
        connect_seconds=arguments.connect_seconds,
        resume_seconds=arguments.resume_seconds,
        credentials=credentials(arguments),
    )
