"""Asks the health service of a process once, for probes that speak TLS: python -m pypto_serving.process.health_probe HOST:PORT.

Kubernetes' own gRPC probe shows no certificate.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pypto_serving.process import argument_types as types
from pypto_serving.process.connection_problems import explained
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.credentials.tls import TlsContents, channel_credentials, watch_tls
from pypto_serving.process.options import require_flags
from pypto_serving.process.start_up import StartUpError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if the service is SERVING, otherwise 1 with one line that says what it is; exits with 2 for wrong flags."""
    parser = probe_parser()
    values = parser.parse_args(arguments)
    require_flags(parser, values, "--tls-cert", "--tls-ca", "--tls-key")
    require_flags(parser, values, "--tls-key", "--tls-cert")
    try:
        secrets = watch_tls("tls", TlsFiles(values.tls_cert, values.tls_key, values.tls_ca)).current() if values.tls_ca else None
    except StartUpError as error:
        parser.error(f"--tls-ca, --tls-cert, --tls-key: {error}")
    with _channel(values, secrets) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=values.service)
            status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=values.seconds).status
        except grpc.RpcError as error:
            print(f"{values.address}: {explained(error.code().name, error.details(), '--tls-ca, --tls-cert, --tls-key')}", file=sys.stderr)
            return 1
    if status == health_pb2.HealthCheckResponse.SERVING:
        return 0
    print(f"{values.address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(status)}", file=sys.stderr)
    return 1


def probe_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m pypto_serving.process.health_probe", description="Ask a health service once.")
    parser.add_argument("address", type=types.address, metavar="HOST:PORT")
    parser.add_argument("--service", default="", metavar="NAME", help="liveness, device; default: whether requests would succeed")
    parser.add_argument("--seconds", type=types.positive_seconds, default=3.0, metavar="S", help="how long to wait for the answer")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="speak TLS; PEM certificates of the server's authority")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate to show")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM key of --tls-cert")
    parser.add_argument("--tls-name", metavar="NAME", help="host that the server's certificate names; default: the one dialled")
    return parser


def _channel(values: argparse.Namespace, secrets: TlsContents | None) -> grpc.Channel:
    if secrets is None:
        return grpc.insecure_channel(values.address)
    options = [("grpc.ssl_target_name_override", values.tls_name)] if values.tls_name else []
    return grpc.secure_channel(values.address, channel_credentials(secrets), options)


if __name__ == "__main__":
    sys.exit(main())
