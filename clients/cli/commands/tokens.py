"""`tokenize` and `detokenize`."""

import argparse

from clients.cli.as_json import to_json
from clients.cli.command import Command, UsageError
from clients.cli.exit_code import ExitCode
from clients.cli.flags.connection import open_client
from clients.cli.prompt import read_text


def _add_tokenize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", help="the text; - or nothing reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="take the text as a user's message and apply the chat template")
    parser.add_argument("--no-special-tokens", action="store_true", help="do not add the tokenizer's special tokens")
    parser.add_argument("--json", action="store_true", help="one JSON object, with the place of each token in the text")


def _tokenize(arguments: argparse.Namespace) -> int:
    text = read_text(arguments.text, "text")
    add_special_tokens = False if arguments.no_special_tokens else None
    with open_client(arguments) as client:
        if arguments.chat:
            tokens = client.tokenize(messages=[{"role": "user", "content": text}])
        else:
            tokens = client.tokenize(text, add_special_tokens=add_special_tokens, with_offsets=arguments.json)
    print(to_json(tokens) if arguments.json else " ".join(map(str, tokens.token_ids)))
    return ExitCode.OK


def _add_detokenize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", help="token ids; none reads them from standard input")
    parser.add_argument("--skip-special-tokens", action="store_true", help="leave special tokens out")


def _detokenize(arguments: argparse.Namespace) -> int:
    words = read_text(" ".join(arguments.ids) or None, "ids").replace(",", " ").split()
    try:
        token_ids = [int(word) for word in words]
    except ValueError as error:
        raise UsageError(f"ids: {error}") from error
    with open_client(arguments) as client:
        print(client.detokenize(token_ids, skip_special_tokens=arguments.skip_special_tokens))
    return ExitCode.OK


TOKENIZE = Command("tokenize", "turn text into token ids", _add_tokenize_arguments, _tokenize)
DETOKENIZE = Command("detokenize", "turn token ids into text", _add_detokenize_arguments, _detokenize)
