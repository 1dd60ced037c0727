"""What a failed call means to whoever typed the command, and with which exit status it ends."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clients.cli.command import ExitCode

if TYPE_CHECKING:
    from clients.errors import ServingError

_KEY_SOURCES = "--api-key-file or PYPTO_SERVING_API_KEY"
_TLS_FLAGS = "--tls, --tls-ca, --tls-cert, --tls-key"
_NO_CLIENTS_PORT = "is no address for clients: is it that of operators, or of a worker?"
_NO_ADMIN_PORT = "is no address for operators: --admin-port of a control plane gives it one"


def exit_code(error: "ServingError") -> ExitCode:
    """The exit status of a command that ends with it."""
    from clients.errors import ServerUnreachable

    return ExitCode.UNREACHABLE if isinstance(error, ServerUnreachable) else ExitCode.FAILED


def explanation(error: "ServingError", addresses: Sequence[str], arguments: argparse.Namespace) -> str:
    """One line: whom it is about, what failed, and what to do, by the flags that were given."""
    where, code = ", ".join(addresses), error.code.name
    is_for_operators = getattr(arguments, "is_for_operators", False)
    if exit_code(error) is ExitCode.UNREACHABLE:
        speaks_tls = any(getattr(arguments, flag, None) for flag in ("tls", "tls_ca", "tls_cert"))
        return _why_unreachable(error, where, is_for_operators) + _tls_hint(error, speaks_tls)
    request = f" (request {error.request_id})" if error.request_id else ""
    if code == "UNAUTHENTICATED":
        return f"{code}: {error.message}; {_KEY_SOURCES} names {'one of its --admin-key-file' if is_for_operators else 'one'}{request}"
    if code == "UNIMPLEMENTED" and error.message == "Method not found!":
        return f"{code}: {where} {_NO_ADMIN_PORT if is_for_operators else _NO_CLIENTS_PORT}"
    if is_for_operators and code == "DEADLINE_EXCEEDED":
        return f"{where} has been reached and does not answer: is it the address for operators (--admin-port of a control plane)?"
    return f"{code}: {error.message}{request}"


def _tls_hint(error: "ServingError", speaks_tls: bool) -> str:
    """What else it may be: of several addresses of a host gRPC tells only the last failure, such as that the port is closed there."""
    from pypto_serving.process.connection_problems import connection_problem

    if "failed to connect" not in error.message or connection_problem(error.message):
        return ""
    if speaks_tls:
        return "; or its certificate comes from no authority of --tls-ca"
    return "; or it asks for TLS" if "ipv6:" in error.message else ""


def _why_unreachable(error: "ServingError", where: str, is_for_operators: bool) -> str:
    from pypto_serving.process.connection_problems import connection_problem

    if "Failed parsing HTTP/2" in error.message:
        return f"{where}: it speaks HTTP/1, and no gRPC; is that the port of metrics, or of OpenAI's API?"
    if problem := connection_problem(error.message):
        return f"{where} cannot be talked to: {problem} (flags: {_TLS_FLAGS})"
    if "errors resolving" in error.message:
        return f"{where}: no host of that name is known here"
    if "failed to connect" not in error.message:
        return f"{where} is not available: {error.__cause__ or error.message}"
    if is_for_operators:
        return f"no answer from {where}: --admin-port of a control plane gives it an address for operators"
    return f"no answer from {where}: start it with `pypto-serving-control`, or in a checkout with `make serve-control`"
