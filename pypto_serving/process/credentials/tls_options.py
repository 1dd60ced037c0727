"""Flags of the TLS of a server."""

import argparse
from pathlib import Path

from pypto_serving.process.credentials.tls_files import TlsFiles
from pypto_serving.process.options import require_flags


def add_server_tls_options(parser: argparse._ActionsContainer, peers: str) -> None:
    """Add --tls-cert, --tls-key and --tls-client-ca; `peers` says who connects."""
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain to serve TLS with; default: plain text")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM key of --tls-cert, not encrypted")
    parser.add_argument("--tls-client-ca", type=Path, metavar="FILE", help=f"PEM certificates of the CA that {peers} must show one of")


def server_tls_files(parser: argparse.ArgumentParser, values: argparse.Namespace) -> TlsFiles | None:
    """The files named; None without any. Ends with exit code 2 where one is missing beside another."""
    require_flags(parser, values, "--tls-key", "--tls-cert")
    require_flags(parser, values, "--tls-client-ca", "--tls-cert")
    require_flags(parser, values, "--tls-cert", "--tls-key")
    if values.tls_cert is None:
        return None
    return TlsFiles(values.tls_cert, values.tls_key, values.tls_client_ca)
