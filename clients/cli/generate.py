"""`generate`: one answer."""

import argparse
from typing import TYPE_CHECKING, Any

from clients.cli.command import Command, ExitCode
from clients.cli.connection_flags import open_client
from clients.cli.output import AnswerPrinter, show_logprobs, to_json
from clients.cli.request_flags import add_request_arguments, request_fields
from clients.cli.streams import read_text

if TYPE_CHECKING:
    from clients.client import Client
    from clients.results import Completion


class Generate(Command):
    """Prints an answer, as it comes or when it is complete."""

    name = "generate"
    summary = "generate an answer to a prompt"
    examples = (
        '"What is the capital of France?" --temperature 0',
        '"The year of the moon landing:" --raw --regex "[0-9]{4}" -n 3',
        "--json --logprobs 3 < question.txt",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = f"{parser.prog} [options] [prompt]"
        parser.add_argument("prompt", nargs="?", help="the prompt; - or nothing reads it from standard input")
        form = parser.add_mutually_exclusive_group()
        form.add_argument(
            "--chat", action="store_true", help="send the prompt as a user's message (default if the model has a chat template)"
        )
        form.add_argument("--raw", action="store_true", help="send the prompt as it is")
        parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
        parser.add_argument("--continue-from", metavar="TEXT", help="beginning of the answer, which goes on from there")
        parser.add_argument("-n", type=int, metavar="N", help="number of choices; more than one is not streamed")
        parser.add_argument("--logprobs", type=int, nargs="?", const=0, metavar="N", help="show log probabilities, with N rivals")
        parser.add_argument(
            "--prompt-logprobs", type=int, nargs="?", const=0, metavar="N", help="first show log probabilities of the prompt, with N rivals"
        )
        parser.add_argument("--no-stream", action="store_true", help="show the answer when it is complete")
        parser.add_argument("--json", action="store_true", help="one JSON object per event, or with --no-stream one for the answer")
        add_request_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        text = read_text(arguments.prompt, "prompt")
        with open_client(arguments) as client:
            fields = request_fields(arguments) | _prompt(arguments, text, client)
            if arguments.n is not None:
                fields["n"] = arguments.n
            if arguments.logprobs is not None:
                fields |= {"logprobs": True, "top_logprobs": arguments.logprobs}
            fields["prompt_logprobs"] = arguments.prompt_logprobs
            _answer(client, arguments, fields)
        return ExitCode.OK


def _prompt(arguments: argparse.Namespace, text: str, client: "Client") -> dict[str, Any]:
    given = (arguments.system, arguments.continue_from, arguments.tools, arguments.documents, arguments.template_arg)
    as_chat = arguments.chat or arguments.literal_text or any(value is not None for value in given)
    if arguments.raw or not (as_chat or client.models()[0].has_chat_template):
        return {"prompt": text}
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    messages = [*system, {"role": "user", "content": text}]
    if arguments.continue_from is None:
        return {"messages": messages}
    return {"messages": [*messages, {"role": "assistant", "content": arguments.continue_from}], "continue_final_message": True}


def _answer(client: "Client", arguments: argparse.Namespace, fields: dict[str, Any]) -> None:
    if arguments.json and arguments.no_stream:
        print(to_json(client.generate(**fields)))
    elif arguments.json:
        for event in client.stream(**fields):
            print(to_json(event, event=type(event).__name__.lower()), flush=True)
    elif arguments.no_stream or (arguments.n or 1) > 1:
        _show_completion(client.generate(**fields))
    else:
        AnswerPrinter().show(client.stream(**fields))


def _show_completion(completion: "Completion") -> None:
    show_logprobs(completion.prompt_logprobs)
    for choice in completion.choices:
        if len(completion.choices) > 1:
            print(f"--- choice {choice.index} ({choice.finish_reason})")
        print(choice.text)
        show_logprobs(choice.logprobs)
