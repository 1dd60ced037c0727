"""Configuration of a gateway process."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import configargparse

from pypto_serving.process import argument_types as types
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.options import add_log_options, add_server_tls_options, argument_parser, require_flags, server_tls_files
from pypto_serving.process.version import program_name

TOOL_PARSERS = ("auto", "hermes", "llama3", "mistral", "deepseek-v3", "deepseek-v3.1", "deepseek-v4")


@dataclass(frozen=True, slots=True)
class Upstream:
    """How control planes are called; files of TLS are PEM."""

    targets: tuple[str, ...]
    connect_seconds: float
    resume_seconds: float
    tls: bool
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None


@dataclass(frozen=True, slots=True)
class LiveStateSources:
    """What is asked for the state of the service; none of it without flags."""

    admin_targets: tuple[str, ...]
    admin_key_file: Path | None
    metrics_urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything that the command line says."""

    host: str
    port: int
    tls: TlsFiles | None
    upstream: Upstream
    live_state: LiveStateSources
    tool_parser: str
    reasoning_parser: str
    is_strict: bool
    max_body_bytes: int
    drain_seconds: float
    log_format: str
    log_level: str


def gateway_parser() -> configargparse.ArgumentParser:
    """The flags of `python -m clients.gateway`."""
    parser = argument_parser(program_name("clients.gateway"), "OpenAI's HTTP API in front of control planes.", "gateway")
    _add_server_flags(parser.add_argument_group("server"))
    _add_upstream_flags(parser.add_argument_group("control planes"))
    _add_answer_flags(parser.add_argument_group("answers"))
    _add_live_state_flags(parser.add_argument_group("live state", "What the page at / shows of the service; without these flags nothing."))
    add_log_options(parser.add_argument_group("log"))
    return parser


def read_config(arguments: Sequence[str]) -> GatewayConfig:
    """Read flags, environment and file of `python -m clients.gateway`; exits for wrong flags and --help."""
    parser = gateway_parser()
    values = parser.parse_args(arguments)
    return GatewayConfig(
        host=values.host,
        port=values.port,
        tls=server_tls_files(parser, values),
        upstream=_upstream(parser, values),
        live_state=_live_state(parser, values),
        tool_parser=values.tool_parser,
        reasoning_parser=values.reasoning_parser,
        is_strict=values.strict,
        max_body_bytes=values.max_body_bytes,
        drain_seconds=values.drain_seconds,
        log_format=values.log_format,
        log_level=values.log_level,
    )


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on")
    group.add_argument("--port", type=types.port, default=8000, help="port to listen on; 0: any free one")
    add_server_tls_options(group, "clients")
    group.add_argument("--max-body-bytes", type=types.positive, default=16 * 1024 * 1024, metavar="N", help="largest body of a request")
    group.add_argument("--drain-seconds", type=types.seconds, default=30.0, metavar="S", help="longest wait for running answers at the end")


def _add_upstream_flags(group: argparse._ArgumentGroup) -> None:
    target = "host:port of a control plane; repeat for several, of one model or of several (default: 127.0.0.1:50051)"
    group.add_argument("--target", type=types.address, action="append", metavar="HOST:PORT", help=target)
    group.add_argument("--connect-seconds", type=types.seconds, default=5.0, metavar="S", help="give up reaching one after that")
    group.add_argument("--resume-seconds", type=types.seconds, default=60.0, metavar="S", help="give up a broken stream after that")
    group.add_argument("--upstream-tls", action="store_true", help="speak TLS with servers whose certificates are from public authorities")
    group.add_argument("--upstream-tls-ca", type=Path, metavar="FILE", help="speak TLS; PEM certificates of the servers' authority")
    group.add_argument("--upstream-tls-cert", type=Path, metavar="FILE", help="PEM certificate to show to them")
    group.add_argument("--upstream-tls-key", type=Path, metavar="FILE", help="PEM key of --upstream-tls-cert, not encrypted")


def _add_answer_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tool-parser", choices=TOOL_PARSERS, default="auto", help="how models write calls; auto: by architecture")
    group.add_argument("--reasoning-parser", choices=("auto", "none"), default="auto", help="auto: by <think> in the vocabulary")
    group.add_argument("--strict", action="store_true", help="refuse fields that are not known, rather than list them in x-ignored-fields")


def _add_live_state_flags(group: argparse._ArgumentGroup) -> None:
    admin = "host:port of a control plane's admin service (--admin-port there), reached over TLS as --target is; repeat for several"
    group.add_argument("--admin-target", type=types.address, action="append", metavar="HOST:PORT", help=admin)
    group.add_argument("--admin-key-file", type=Path, metavar="FILE", help="file with the key to show to admin services")
    metrics = "address of a control plane's metrics, such as http://127.0.0.1:9400/metrics; repeat for several processes"
    group.add_argument("--metrics-url", type=_metrics_url, action="append", metavar="URL", help=metrics)


def _metrics_url(text: str) -> str:
    from clients.service_state.exposition import metrics_url  # not for --help

    try:
        return metrics_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _live_state(parser: configargparse.ArgumentParser, values: argparse.Namespace) -> LiveStateSources:
    require_flags(parser, values, "--admin-key-file", "--admin-target")
    return LiveStateSources(tuple(values.admin_target or ()), values.admin_key_file, tuple(values.metrics_url or ()))


def _upstream(parser: configargparse.ArgumentParser, values: argparse.Namespace) -> Upstream:
    require_flags(parser, values, "--upstream-tls-cert", "--upstream-tls-key")
    require_flags(parser, values, "--upstream-tls-key", "--upstream-tls-cert")
    return Upstream(
        targets=tuple(values.target or ["127.0.0.1:50051"]),
        connect_seconds=values.connect_seconds,
        resume_seconds=values.resume_seconds,
        tls=values.upstream_tls,
        tls_ca=values.upstream_tls_ca,
        tls_cert=values.upstream_tls_cert,
        tls_key=values.upstream_tls_key,
    )
