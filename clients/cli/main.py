"""Entry point: parses, runs one command, and turns what went wrong into a line and an exit status."""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence

from clients.cli import streams
from clients.cli.command import ExitCode, OutputFailed, UsageError
from clients.cli.connection_flags import ADMIN_TARGET, TARGET, targets
from clients.cli.explanation import exit_code, explanation
from clients.cli.parser import command_parser
from pypto_serving.process.stray_settings import stray_variable, without_service_links


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
    if stray := stray_variable(without_service_links(environment), "", ()):
        raise UsageError(stray)
    parsed.default_api_key = environment.get("PYPTO_SERVING_API_KEY") or None
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=streams.notice_format())
    return _run(parsed)


def _run(arguments: argparse.Namespace) -> int:
    addresses = targets(arguments) if hasattr(arguments, "default_targets") else []
    if hasattr(arguments, "default_targets") and not addresses:
        raise UsageError("--target: no address given")
    from clients.errors import ServingError

    try:
        return int(arguments.run(arguments))
    except ServingError as error:
        print(f"error: {explanation(error, addresses, arguments)}", file=sys.stderr)
        return exit_code(error)
    except OutputFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.FAILED
