"""Flags that say who may use a control plane, and how its parts reach each other. Nothing here imports gRPC, so that --help is fast."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from control_plane.edge.access.callers import DEFAULT_PRIORITIES, PriorityRange, parse_priorities
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.options import add_server_tls_options, require_flags, server_tls_files


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Files of certificates and keys that clients and operators are asked for; None: not asked for."""

    tls: TlsFiles | None
    api_keys_file: Path | None
    admin_key_file: Path | None
    priorities: PriorityRange
    reflection: bool


@dataclass(frozen=True, slots=True)
class PeerTls:
    """TLS between two parts of the service. `name`: the host that the other end's certificate names; None: the one dialled."""

    files: TlsFiles
    name: str | None = None


def add_access_options(parser: argparse._ActionsContainer) -> None:
    """Add the flags for clients and operators."""
    add_server_tls_options(parser, "clients")
    parser.add_argument(
        "--api-keys-file",
        type=Path,
        metavar="FILE",
        help="keys of clients, one a line, and behind it name=NAME, priority=LOW..HIGH, tokens-per-minute=N or requests=N;"
        " default: whoever reaches the port may use it",
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


def _priorities(text: str) -> PriorityRange:
    try:
        return parse_priorities(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def access_options(parser: argparse.ArgumentParser, values: argparse.Namespace) -> AccessOptions:
    """What they say; ends with exit code 2 where one is missing beside another."""
    return AccessOptions(
        tls=server_tls_files(parser, values),
        api_keys_file=values.api_keys_file,
        admin_key_file=values.admin_key_file,
        priorities=values.priorities,
        reflection=values.reflection,
    )


def add_worker_tls_options(parser: argparse._ActionsContainer) -> None:
    """Add the flags for the links to workers."""
    parser.add_argument("--worker-tls-ca", type=Path, metavar="FILE", help="reach workers over TLS; PEM certificates of their CA")
    parser.add_argument("--worker-tls-cert", type=Path, metavar="FILE", help="PEM certificate chain to show to workers")
    parser.add_argument("--worker-tls-key", type=Path, metavar="FILE", help="PEM key of --worker-tls-cert, not encrypted")
    parser.add_argument("--worker-tls-name", metavar="NAME", help="host that workers' certificates name; default: the one dialled")


def worker_tls(parser: argparse.ArgumentParser, values: argparse.Namespace) -> PeerTls | None:
    """What they say; None: plain text. Ends with exit code 2 where one is missing beside another."""
    require_flags(parser, values, "--worker-tls-cert", "--worker-tls-ca", "--worker-tls-key")
    require_flags(parser, values, "--worker-tls-key", "--worker-tls-cert")
    require_flags(parser, values, "--worker-tls-name", "--worker-tls-ca")
    if values.worker_tls_ca is None:
        return None
    return PeerTls(TlsFiles(values.worker_tls_cert, values.worker_tls_key, values.worker_tls_ca), values.worker_tls_name)


def add_link_tls_options(parser: argparse._ActionsContainer, peers: str) -> None:
    """Add the flags for the link between front ends and schedulers, which is mutual: `peers` says who is at the other end."""
    parser.add_argument("--link-tls-ca", type=Path, metavar="FILE", help=f"speak mutual TLS; PEM certificates of the CA of {peers}")
    parser.add_argument("--link-tls-cert", type=Path, metavar="FILE", help=f"PEM certificate chain to show to {peers}")
    parser.add_argument("--link-tls-key", type=Path, metavar="FILE", help="PEM key of --link-tls-cert, not encrypted")


def link_tls(parser: argparse.ArgumentParser, values: argparse.Namespace, name: str | None = None) -> PeerTls | None:
    """What they say, as `worker_tls`."""
    flags = ("--link-tls-ca", "--link-tls-cert", "--link-tls-key")
    for flag in flags:
        require_flags(parser, values, flag, *(other for other in flags if other != flag))
    if values.link_tls_ca is None:
        return None
    return PeerTls(TlsFiles(values.link_tls_cert, values.link_tls_key, values.link_tls_ca), name)
