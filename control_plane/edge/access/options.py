"""Flags that say who may use a control plane, and how it reaches its workers. Nothing here imports gRPC, so that --help is fast."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from control_plane.edge.access.callers import DEFAULT_PRIORITIES, PriorityRange, parse_priorities
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.options import add_server_tls_options, require_flags, server_tls_files


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Files of certificates and keys; None: not asked for."""

    tls: TlsFiles | None
    worker_tls: TlsFiles | None
    worker_tls_name: str | None
    api_keys_file: Path | None
    admin_key_file: Path | None
    priorities: PriorityRange
    reflection: bool


def add_access_options(parser: argparse._ActionsContainer) -> None:
    """Add the flags."""
    add_server_tls_options(parser, "clients")
    parser.add_argument(
        "--api-keys-file",
        type=Path,
        metavar="FILE",
        help="keys of clients, one a line, and name=NAME or priority=LOW..HIGH behind it; default: whoever reaches the port may use it",
    )
    parser.add_argument(
        "--priorities",
        type=_priorities,
        default=DEFAULT_PRIORITIES,
        metavar="LOW..HIGH",
        help="priorities of requests whose key says nothing else, lower runs first; written with =: --priorities=-10..10",
    )
    parser.add_argument("--admin-key-file", type=Path, metavar="FILE", help="keys of operators, one a line, for the admin service")
    parser.add_argument(
        "--reflection", action=argparse.BooleanOptionalAction, default=True, help="describe the API to tools such as grpcurl, without a key"
    )
    parser.add_argument("--worker-tls-ca", type=Path, metavar="FILE", help="reach workers over TLS; PEM certificates of their CA")
    parser.add_argument("--worker-tls-cert", type=Path, metavar="FILE", help="PEM certificate chain to show to workers")
    parser.add_argument("--worker-tls-key", type=Path, metavar="FILE", help="PEM key of --worker-tls-cert, not encrypted")
    parser.add_argument("--worker-tls-name", metavar="NAME", help="host that workers' certificates name; default: the one dialled")


def _priorities(text: str) -> PriorityRange:
    try:
        return parse_priorities(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def access_options(parser: argparse.ArgumentParser, values: argparse.Namespace) -> AccessOptions:
    """What the flags say; ends with exit code 2 where one is missing beside another."""
    tls = server_tls_files(parser, values)
    require_flags(parser, values, "--worker-tls-cert", "--worker-tls-ca", "--worker-tls-key")
    require_flags(parser, values, "--worker-tls-key", "--worker-tls-cert")
    require_flags(parser, values, "--worker-tls-name", "--worker-tls-ca")
    has_worker_tls = values.worker_tls_ca is not None
    return AccessOptions(
        tls=tls,
        worker_tls=TlsFiles(values.worker_tls_cert, values.worker_tls_key, values.worker_tls_ca) if has_worker_tls else None,
        worker_tls_name=values.worker_tls_name,
        api_keys_file=values.api_keys_file,
        admin_key_file=values.admin_key_file,
        priorities=values.priorities,
        reflection=values.reflection,
    )
