"""Command line of a process: flags over environment over a TOML file over defaults."""

import argparse
import io
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import configargparse

from pypto_serving.process.argument_types import url
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.stray_settings import stray_table, stray_variable, without_service_links
from pypto_serving.process.version import add_version_option


def argument_parser(prog: str, description: str, section: str) -> configargparse.ArgumentParser:
    """Parser whose flags can also be set in the environment or in a TOML file.

    The flag --max-lanes of the section "worker" is PYPTO_SERVING_WORKER_MAX_LANES in the environment, and the key max-lanes of the table
    [worker] in the file given with --config. Variables with this prefix, and entries of the file, that nobody reads end the program.
    """
    prefix = f"PYPTO_SERVING_{section.upper()}_"
    parser = _Parser(
        section,
        prog=prog,
        description=description,
        epilog=f"Every flag can also stand in the environment (--log-level as {prefix}LOG_LEVEL), or in the table [{section}] of a TOML "
        "file that --config names. The command line goes before the environment, the environment before the file.",
        formatter_class=_HelpFormatter,
        add_env_var_help=False,  # it would repeat itself at every flag
        add_config_file_help=False,
        auto_env_var_prefix=prefix,
        config_file_parser_class=_TomlParser([section]),
    )
    parser.add_argument("--config", is_config_file=True, metavar="FILE", help=f"TOML file; flags are keys of its table [{section}]")
    add_version_option(parser)
    return parser


class _Parser(configargparse.ArgumentParser):  # type: ignore[misc]  # untyped
    """Refuses variables of the environment that look like ours and are no flag."""

    def __init__(self, section: str, **options: Any) -> None:
        super().__init__(**options)
        self._section = section

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None, *rest: Any, env_vars: Mapping[str, str] = os.environ, **more: Any
    ) -> Any:
        """As that of configargparse; `parse_args` calls it."""
        environment = without_service_links(env_vars)
        parsed = super().parse_known_args(args, namespace, *rest, env_vars=environment, **more)
        if stray := stray_variable(environment, self._section, [each.env_var for each in self._actions if each.env_var]):
            self.error(stray)
        return parsed

    def error(self, message: str) -> None:
        """As that of argparse, which knows flags only: name where the value stands instead, if it does not stand there."""
        for source, settings in self.get_source_to_settings_dict().items():
            for key, (action, _) in settings.items():
                blamed = f"argument {'/'.join(action.option_strings)}: " if action else f"unrecognized arguments: --{key}"
                if message.startswith(blamed) and (place := _place(source, key)):
                    message = f"{place}: {message.removeprefix(blamed) if action else 'there is no such flag'}"
        super().error(message)


def _place(source: str, key: str) -> str:
    """Where a setting stands, by configargparse's word for that; empty for the command line."""
    kind, _, file = source.partition("|")
    return {"environment_variables": f"the environment variable {key}", "config_file": f"--config {file}, {key}"}.get(kind, "")


class _TomlParser(configargparse.TomlConfigParser):  # type: ignore[misc]  # untyped
    """Refuses tables that no program reads."""

    def parse(self, stream: Any) -> Any:
        """As that of configargparse."""
        text = stream.read()
        try:
            stray = stray_table(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            stray = str(error)
        if stray:
            raise configargparse.ConfigFileParserException(f"--config {stream.name}: {stray}")
        return super().parse(io.StringIO(text))


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults of flags that have one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is False or action.default in (None, []) else super()._get_help_string(action)


def add_log_options(parser: argparse._ActionsContainer) -> None:
    """Add --log-format and --log-level, the arguments of `logs.configure`."""
    formats, levels = ("auto", "text", "json"), ("debug", "info", "warning", "error")
    parser.add_argument("--log-format", choices=formats, default="auto", help="of the log's lines; auto: text on a terminal, else JSON")
    parser.add_argument("--log-level", choices=levels, default="info", help="least severe event to log")


def add_tracing_options(parser: argparse._ActionsContainer) -> None:
    """Add --otlp-endpoint."""
    parser.add_argument(
        "--otlp-endpoint",
        type=url,
        metavar="URL",
        help="collector of OpenTelemetry that spans of requests are sent to over gRPC, http://HOST:PORT or https://HOST:PORT; default: off",
    )


def require_flags(parser: argparse.ArgumentParser, values: argparse.Namespace, flag: str, *needed: str) -> None:
    """End with exit code 2 when `flag` is given without all of the `needed` ones."""
    missing = [other for other in needed if getattr(values, _destination(other)) is None]
    if getattr(values, _destination(flag)) is not None and missing:
        parser.error(f"{flag} needs {' and '.join(missing)}")


def _destination(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


#: The flags of `add_server_tls_options`.
SERVER_TLS_FLAGS = ("--tls-cert", "--tls-key", "--tls-client-ca")


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
