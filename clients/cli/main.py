"""Entry point: parses, runs one command, and turns what went wrong into a line and an exit status."""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clients.cli import streams
from clients.cli.command import ExitCode, UsageError
from clients.cli.connection_flags import ADMIN_TARGET, TARGET, targets
from clients.cli.parser import command_parser

if TYPE_CHECKING:
    from clients.errors import ServingError

_KEY_SOURCES = "--api-key-file or PYPTO_SERVING_API_KEY"
_TLS_FLAGS = "--tls, --tls-ca, --tls-cert, --tls-key"


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one command; returns the exit status."""
    try:
        streams.prepare()
        try:
            return _parse_and_run(arguments, environment)
        finally:
            sys.stdout.flush()  # at exit Python would report what cannot be written, and not in one line
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.USAGE
    except UnicodeDecodeError as error:
        print(f"error: standard input is not {error.encoding}", file=sys.stderr)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        streams.discard_output()
        return ExitCode.FAILED
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        streams.discard_output()
        return ExitCode.FAILED


def _parse_and_run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    streams.check_text(arguments)
    parsed = command_parser(*(environment.get(variable) or default for variable, default in (TARGET, ADMIN_TARGET))).parse_args(arguments)
    parsed.default_api_key = environment.get("PYPTO_SERVING_API_KEY") or None
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=streams.notice_format())
    return _run(parsed)


def _run(arguments: argparse.Namespace) -> int:
    addresses = targets(arguments) if hasattr(arguments, "default_targets") else []
    if hasattr(arguments, "default_targets") and not addresses:
        raise UsageError("--target: no address given")
    from clients.errors import ServerUnreachable, ServingError

    try:
        return int(arguments.run(arguments))
    except ServingError as error:
        print(f"error: {_explanation(error, addresses, getattr(arguments, 'is_for_operators', False))}", file=sys.stderr)
        return ExitCode.UNREACHABLE if isinstance(error, ServerUnreachable) else ExitCode.FAILED


def _explanation(error: "ServingError", addresses: Sequence[str], is_for_operators: bool) -> str:
    from clients.errors import ServerUnreachable
    from pypto_serving.process.connection_problems import connection_problem

    if not isinstance(error, ServerUnreachable):
        request = f" (request {error.request_id})" if error.request_id else ""
        way_out = f"; {_KEY_SOURCES} names one" if error.code.name == "UNAUTHENTICATED" else ""
        if is_for_operators and error.code.name == "UNIMPLEMENTED":
            way_out = f"; {', '.join(addresses)} is no address for operators: --admin-port of a control plane gives it one"
        return f"{error.code.name}: {error.message}{way_out}{request}"
    where = ", ".join(addresses)
    problem = connection_problem(error.message)
    if problem:
        return f"{where} cannot be talked to: {problem} (flags: {_TLS_FLAGS})"
    if is_for_operators and "failed to connect" in error.message:
        return f"no answer from {where}: --admin-port of a control plane gives it an address for operators"
    if "errors resolving" in error.message:
        return f"{where}: no host of that name is known here"
    if "failed to connect" in error.message:
        return f"no answer from {where}: start it with `pypto-serving-control`, or in a checkout with `make serve-control`"
    return f"{where} is not available: {error.__cause__}"
