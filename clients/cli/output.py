"""Shows results: an answer while it is generated, log probabilities, JSON."""

import json
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.status import Status

    from clients.results import Event, Finished, TokenLogprob


class AnswerPrinter:
    """Writes an answer to standard output as it comes, and on a terminal how it went to standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first_text_seconds: float | None = None
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """What has been written so far."""
        return "".join(self._parts)

    def show(self, events: "Generator[Event, None, None]") -> None:
        """Write until the events end; the request is cancelled when that is cut short."""
        from clients.results import Delta, Finished, PromptLogprobs

        logprobs: list[TokenLogprob] = []
        finished: Finished | None = None
        try:
            with closing(events), _waiting() as status:
                for event in events:
                    if event.text:
                        self._write(event.text, status)
                    if isinstance(event, PromptLogprobs):
                        show_logprobs(event.entries)
                    elif isinstance(event, Delta):
                        logprobs += event.logprobs
                    elif isinstance(event, Finished):
                        finished = event
        finally:
            # An answer that was cut short ends its line too.
            if self._parts or finished:
                print(flush=True)
        if finished and sys.stderr.isatty():
            self._print_figures(finished)
        show_logprobs(logprobs)

    def _write(self, text: str, status: "Status | None") -> None:
        if self._first_text_seconds is None:
            self._first_text_seconds = time.monotonic() - self._began
            if status is not None:
                status.stop()
        self._parts.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    def _print_figures(self, finished: "Finished") -> None:
        seconds = time.monotonic() - self._began
        num_tokens = finished.usage.completion_tokens
        first = f"{self._first_text_seconds or seconds:.2f} s to the first text"
        print(f"[{num_tokens} tokens, {finished.reason}, {first}, {num_tokens / seconds:.1f} tokens/s]", file=sys.stderr)


def _waiting() -> "AbstractContextManager[Status | None]":
    if not sys.stderr.isatty() or find_spec("rich") is None:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("waiting for the first token")


def show_logprobs(logprobs: "Iterable[TokenLogprob]") -> None:
    """Write one line per token: its log probability, its text, and its rivals."""
    for entry in logprobs:
        rivals = "  ".join(f"{_shown(top.token)} {top.logprob:.3f}" for top in entry.top)
        logprob = "-" if entry.logprob is None else f"{entry.logprob:.3f}"
        print(f"{logprob:>9}  {_shown(entry.token):16}  {rivals}".rstrip())


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "backslashreplace"))


def to_json(result: "DataclassInstance", **more: Any) -> str:
    """One line; bytes become lists of numbers."""
    return json.dumps({**more, **asdict(result)}, default=list, ensure_ascii=False)
