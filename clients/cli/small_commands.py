"""`tokenize`, `detokenize`, `models`, `server`, `health` and `abort`."""

import argparse
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from clients.cli.command import Command, ExitCode, UsageError
from clients.cli.connection_flags import open_client
from clients.cli.output import to_json
from clients.cli.streams import read_text
from pypto_serving.process.argument_types import seconds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from clients.client import Client

_POLL_SECONDS = 0.2


class Tokenize(Command):
    """Prints the ids of a text or a chat."""

    name = "tokenize"
    summary = "turn text into token ids"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("text", nargs="?", help="the text; - or nothing reads it from standard input")
        parser.add_argument("--chat", action="store_true", help="take the text as a user's message and apply the chat template")
        parser.add_argument("--no-special-tokens", action="store_true", help="do not add the tokenizer's special tokens")
        parser.add_argument("--json", action="store_true", help="one JSON object, with the place of each token in the text")

    def run(self, arguments: argparse.Namespace) -> int:
        text = read_text(arguments.text, "text")
        add_special_tokens = False if arguments.no_special_tokens else None
        with open_client(arguments) as client:
            if arguments.chat:
                tokens = client.tokenize(messages=[{"role": "user", "content": text}])
            else:
                tokens = client.tokenize(text, add_special_tokens=add_special_tokens, with_offsets=arguments.json)
        print(to_json(tokens) if arguments.json else " ".join(map(str, tokens.token_ids)))
        return ExitCode.OK


class Detokenize(Command):
    """Prints the text of ids."""

    name = "detokenize"
    summary = "turn token ids into text"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ids", nargs="*", help="token ids; none reads them from standard input")
        parser.add_argument("--skip-special-tokens", action="store_true", help="leave special tokens out")

    def run(self, arguments: argparse.Namespace) -> int:
        words = read_text(" ".join(arguments.ids) or None, "ids").replace(",", " ").split()
        try:
            token_ids = [int(word) for word in words]
        except ValueError:
            wrong = next(word for word in words if not word.lstrip("-").isdecimal())
            raise UsageError(f"ids: {wrong!r} is no whole number") from None
        with open_client(arguments) as client:
            print(client.detokenize(token_ids, skip_special_tokens=arguments.skip_special_tokens))
        return ExitCode.OK


class Models(Command):
    """Prints what a server tells of its models."""

    name = "models"
    summary = "describe the served models"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object per line")

    def run(self, arguments: argparse.Namespace) -> int:
        with open_client(arguments) as client:
            for model in client.models():
                _show(model, arguments.json)
        return ExitCode.OK


class Server(Command):
    """Prints what a server tells of itself."""

    name = "server"
    summary = "describe the server"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object per line")

    def run(self, arguments: argparse.Namespace) -> int:
        with open_client(arguments) as client:
            _show(client.server(), arguments.json)
        return ExitCode.OK


def _show(description: "DataclassInstance", as_json: bool) -> None:
    if as_json:
        print(to_json(description))
        return
    for name, value in asdict(description).items():
        print(f"{name:20} {_shown(value)}".rstrip())


def _shown(value: object) -> str:
    match value:
        case tuple():
            return " ".join(map(_shown, value))
        case {"address": address, "reason": reason}:
            return f"{address} ({reason})"
        case float():
            return f"{value:.1f}"
    return str(value)


class Health(Command):
    """Prints SERVING or NOT_SERVING, and why it does not serve."""

    name = "health"
    summary = "say whether the server is ready"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--wait", type=seconds, default=0.0, metavar="SECONDS", help="wait until it serves, at most so long")

    def run(self, arguments: argparse.Namespace) -> int:
        deadline = time.monotonic() + arguments.wait
        if arguments.wait:
            arguments.connect_seconds = 0.0
        with open_client(arguments) as client:
            is_serving = _is_serving(client, deadline)
            while not is_serving and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                is_serving = _is_serving(client, deadline)
            print("SERVING" if is_serving else "NOT_SERVING")
            if not is_serving:
                print(_why_not_serving(client), file=sys.stderr)
        return ExitCode.OK if is_serving else ExitCode.FAILED


def _why_not_serving(client: "Client") -> str:
    """Why the server does not serve, as far as it tells: it may ask for a key, or end just now."""
    from clients.errors import ServingError

    try:
        server = client.server()
    except ServingError as error:
        return f"the server does not say why: {error}"
    if server.draining:
        return "the server is about to stop: it lets what runs finish and takes no new requests"
    if server.refused_workers:
        return "; ".join(f"worker {worker.address} is refused: {worker.reason}" for worker in server.refused_workers)
    if not server.num_workers:
        return "no worker is in session with the server: start one (`make serve-worker`); if one runs, the server's log says what is wrong"
    return f"none of the server's workers ({server.num_workers}) answers"


def _is_serving(client: "Client", deadline: float) -> bool:
    from clients.errors import ServerUnreachable

    try:
        return client.is_serving()
    except ServerUnreachable:
        if time.monotonic() >= deadline:
            raise
        return False


class Abort(Command):
    """Ends a request by its id."""

    name = "abort"
    summary = "end a live request"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("request_id", help="exact id of the request")

    def run(self, arguments: argparse.Namespace) -> int:
        with open_client(arguments) as client:
            was_live = client.abort(arguments.request_id)
        print("aborted" if was_live else "was not live")
        return ExitCode.OK
