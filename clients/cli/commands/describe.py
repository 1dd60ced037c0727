"""`models` and `server`: what is running."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from clients.cli.as_json import to_json
from clients.cli.command import Command
from clients.cli.exit_code import ExitCode
from clients.cli.flags.connection import open_client

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _models(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        for model in client.models():
            _show(model, arguments.json)
    return ExitCode.OK


def _server(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as client:
        _show(client.server(), arguments.json)
    return ExitCode.OK


def _show(description: "DataclassInstance", as_json: bool) -> None:
    if as_json:
        print(to_json(description))
        return
    for name, value in asdict(description).items():
        print(f"{name:20} {_shown(value)}")


def _shown(value: object) -> str:
    match value:
        case tuple():
            return " ".join(map(str, value))
        case float():
            return f"{value:.1f}"
    return str(value)


MODELS = Command("models", "describe the served models", _add_arguments, _models)
SERVER = Command("server", "describe the server", _add_arguments, _server)
