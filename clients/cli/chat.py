"""`chat`: a conversation."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clients.cli.command import Command, ExitCode
from clients.cli.connection_flags import open_client
from clients.cli.output import AnswerPrinter
from clients.cli.request_flags import add_request_arguments, request_fields

if TYPE_CHECKING:
    from clients.client import Client


class Chat(Command):
    """A conversation, typed or piped in."""

    name = "chat"
    summary = "talk with the model"
    examples = ('--system "Be brief." --temperature 0.7', "< questions.txt")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = f"{parser.prog} [options]"
        parser.add_argument("--system", metavar="TEXT", help="system message at the beginning")
        add_request_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        is_interactive = sys.stdin.isatty()
        with open_client(arguments) as client:
            conversation = Conversation(client, arguments)
            if is_interactive:
                print(f"{client.models()[0].name}: Ctrl-C stops an answer, /new begins anew, Ctrl-D ends", file=sys.stderr)
            for line in _typed_lines() if is_interactive else (line.removesuffix("\n") for line in sys.stdin):
                if line == "/new":
                    conversation.begin_anew()
                elif line.strip():
                    conversation.say(line, is_interactive)
        return ExitCode.OK


class Conversation:
    """The turns so far."""

    def __init__(self, client: "Client", arguments: argparse.Namespace) -> None:
        self._client = client
        self._fields = request_fields(arguments)
        self._first = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget every turn."""
        self._messages = list(self._first)

    def say(self, text: str, survives_failures: bool) -> None:
        """Take a user's turn and show the answer. A failed turn is forgotten; an interrupted answer is kept as far as it got."""
        from clients.errors import ServingError

        printer = AnswerPrinter()
        turn = {"role": "user", "content": text}
        try:
            printer.show(self._client.stream(messages=[*self._messages, turn], **self._fields))
        except KeyboardInterrupt:
            if not survives_failures:
                raise
            print("[stopped]", file=sys.stderr)
        except ServingError as error:
            if not survives_failures:
                raise
            print(f"error: {error.message}", file=sys.stderr)
            return
        self._messages += [turn, {"role": "assistant", "content": printer.text}]


def _typed_lines() -> Iterator[str]:
    import readline  # noqa: F401  # gives input() its history and line editing

    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return
