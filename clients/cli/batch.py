"""`batch`: answers to the prompts of a file."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from clients.cli.answers_file import Answers
from clients.cli.command import Command, ExitCode
from clients.cli.connection_flags import credentials, targets
from clients.cli.prompts_file import Prompt, read_prompts
from clients.cli.request_flags import add_request_arguments, request_fields
from clients.progress import progress_bar
from pypto_serving.process.argument_types import between

_DESCRIPTION = """\
Answer the prompts of a file: one JSON object a line, such as

  {"id": "a", "prompt": "Once upon a time"}
  {"id": "b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100, "temperature": 0}

`prompt` is sent as it is, `messages` go through the model's chat template. Every other field of a request may stand beside them
(help(clients.Request) lists them) and goes before the flag. Without an id a line is named by its number.

The output has a line for each, as they end: {"id", "request_id", "model", "choices": [{"text", "token_ids", ...}], "usage"}, or
{"id", "error": {"code", "message"}}. Called again, the command goes on: what has an answer there is left alone, what failed
is tried again."""


class Batch(Command):
    """Writes an answer to each line of a file, with so many requests in flight."""

    name = "batch"
    summary = "answer the prompts of a file, and go on where that was interrupted"
    examples = ("prompts.jsonl --output answers.jsonl --concurrency 64 --max-tokens 200",)
    connect_seconds = 60.0

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = f"{parser.prog} [options] --output FILE input"
        parser.description = _DESCRIPTION
        parser.add_argument("input", help="file of prompts (JSONL); - reads standard input")
        parser.add_argument(
            "--output", type=Path, required=True, metavar="FILE", help="file of answers (JSONL); it is continued if it exists"
        )
        parser.add_argument(
            "--concurrency", type=between(1, 4096), default=32, metavar="N", help="requests in flight at any time (%(default)s)"
        )
        add_request_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        prompts = read_prompts(arguments.input, request_fields(arguments))
        with Answers(arguments.output) as answers:
            pending = [prompt for prompt in prompts if prompt.id not in answers.ids]
            num_before = len(prompts) - len(pending)
            num_failed = asyncio.run(_answer_all(arguments, pending, answers))
        failed = f"{num_failed} failed" + (f" ({arguments.output} says why)" if num_failed else "")
        print(f"{len(pending) - num_failed} answered, {failed}, {num_before} had an answer before", file=sys.stderr)
        return ExitCode.FAILED if num_failed else ExitCode.OK


async def _answer_all(arguments: argparse.Namespace, prompts: Sequence[Prompt], answers: Answers) -> int:
    """Returns how many failed. Raises ServerUnreachable when the server is gone: whatever is left would fail as well."""
    from clients.async_client import AsyncClient
    from clients.errors import ServerUnreachable, invalid

    num_failed = 0
    sent = [(prompt.id, prompt.request) for prompt in prompts if prompt.request]
    client = AsyncClient(
        targets(arguments),
        connect_seconds=arguments.connect_seconds,
        resume_seconds=arguments.resume_seconds,
        credentials=credentials(arguments),
    )
    many = client.generate_many((request for _, request in sent), concurrency=arguments.concurrency)
    async with client, aclosing(many) as outcomes:
        with progress_bar("answering", len(prompts), "prompts") as advance:
            for prompt in prompts:
                if prompt.problem:
                    answers.add_error(prompt.id, invalid(prompt.problem))
                    num_failed += 1
                    advance()
            async for outcome in outcomes:
                prompt_id, _ = sent[outcome.index]
                if isinstance(outcome.error, ServerUnreachable):
                    raise outcome.error
                if outcome.completion:
                    answers.add_answer(prompt_id, outcome.completion)
                elif outcome.error:
                    answers.add_error(prompt_id, outcome.error)
                    num_failed += 1
                advance(note=f"{num_failed} failed" if num_failed else "")
    return num_failed
