"""The engine's output as messages to clients, neither too many nor too large, and their way to the connection."""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import grpc.aio

from control_plane.core.step import TokenLogprob
from control_plane.edge.service.choice_output import ChoiceEnd, ChoiceOutput, Delta
from control_plane.edge.text.tokenizer import Tokenizer
from control_plane.engine.ports import FinishReason, PromptLogprobs
from pypto_serving.inference.v1 import inference_pb2

#: A message has log probabilities of so many tokens of the prompt: with all alternatives some 30 KB, which slow readers take in time too.
_PROMPT_TOKENS = 64

#: Stands for the logarithm of a probability too small for one.
_LOGPROB_FLOOR = -9999.0

_Context = grpc.aio.ServicerContext[Any, Any]

_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}

#: However much a slow client has let pile up, it gets messages that it can take in time, and that take some milliseconds to make: so many
#: tokens unless it has asked for more at a time, and so many log probabilities of all of them together, alternatives included.
_MAX_DELTA_TOKENS, _MAX_LOGPROBS = 64, 1024


class ResponseBuilder:
    """Builds messages; it knows the bytes of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def write_delta(self, delta: Delta, message: inference_pb2.Delta) -> None:
        """Put consecutive tokens of a choice into an empty message. In its place it is filled in half of the time that a copy takes."""
        message.choice = delta.choice
        message.text = delta.text
        message.token_ids.extend(delta.token_ids)
        message.first_index = delta.first_index
        message.numerics_id = delta.numerics_id
        if delta.logprobs:
            message.logprobs.extend(self.logprobs(delta.logprobs))

    def logprobs(self, entries: Iterable[TokenLogprob]) -> list[inference_pb2.TokenLogprob]:
        """Log probabilities of tokens."""
        return [
            inference_pb2.TokenLogprob(
                token_id=entry.token_id,
                logprob=None if entry.logprob is None else _finite(entry.logprob),
                token=self._tokenizer.token_bytes(entry.token_id),
                top=[
                    inference_pb2.TopLogprob(token_id=token_id, logprob=_finite(logprob), token=self._tokenizer.token_bytes(token_id))
                    for token_id, logprob in entry.top
                ],
            )
            for entry in entries
        ]

    def next_prompt_logprobs(self, entries: Iterator[TokenLogprob]) -> list[inference_pb2.TokenLogprob]:
        """The next of a prompt's log probabilities, as many as a message takes; none at their end."""
        return self.logprobs(islice(entries, _PROMPT_TOKENS))

    def prompt_event(self, entries: Iterator[TokenLogprob], first_index: int) -> inference_pb2.GenerateStreamResponse | None:
        """An event with the next of a prompt's log probabilities; None at their end."""
        batch = self.next_prompt_logprobs(entries)
        if not batch:
            return None
        return inference_pb2.GenerateStreamResponse(prompt_logprobs=inference_pb2.PromptLogprobs(entries=batch, first_index=first_index))

    def finished(self, end: ChoiceEnd) -> inference_pb2.Finished:
        """The end of a choice."""
        finished = end.finished
        message = inference_pb2.Finished(
            choice=end.choice,
            reason=_REASONS[finished.reason],
            usage=inference_pb2.Usage(
                prompt_tokens=finished.num_prompt_tokens,
                completion_tokens=finished.num_generated_tokens,
                cached_tokens=finished.num_cached_tokens,
            ),
            timing=inference_pb2.Timing(
                queue_seconds=finished.queue_seconds,
                first_token_seconds=finished.first_token_seconds,
                total_seconds=finished.total_seconds,
                num_readmissions=finished.num_readmissions,
            ),
        )
        if end.stop_string is not None:
            message.stop_string = end.stop_string
        elif finished.end_token_id is not None:
            message.stop_token_id = finished.end_token_id
        return message


def serialized_response(
    started: inference_pb2.Started, choices: Sequence[ChoiceOutput], prompt_logprobs: PromptLogprobs | None, builder: ResponseBuilder
) -> bytes:
    """The answer of a unary call from the output of all choices, which have finished, in its form on the wire; for a thread.

    Made of parts, whose forms one after the other are the form of the whole: no part is long to serialize.
    """
    parts = [inference_pb2.GenerateResponse(started=started).SerializeToString()]
    usage = inference_pb2.Usage(prompt_tokens=started.num_prompt_tokens)
    for output in choices:  # a resume leaves out those that had finished
        choice = _whole(output, builder)
        parts.append(inference_pb2.GenerateResponse(choices=[choice]).SerializeToString())
        usage.completion_tokens += choice.finished.usage.completion_tokens
        if output is choices[0]:
            usage.cached_tokens = choice.finished.usage.cached_tokens
    entries = prompt_logprobs.entries if prompt_logprobs else iter(())
    while batch := builder.next_prompt_logprobs(entries):
        parts.append(inference_pb2.GenerateResponse(prompt_logprobs=batch).SerializeToString())
    parts.append(inference_pb2.GenerateResponse(usage=usage).SerializeToString())
    return b"".join(parts)


def _whole(output: ChoiceOutput, builder: ResponseBuilder) -> inference_pb2.Choice:
    """All output of a choice that has finished."""
    choice = inference_pb2.Choice(index=output.index)
    while delta := output.take(1, len(output.token_ids)):
        choice.text += delta.text
        choice.token_ids.extend(delta.token_ids)
        choice.logprobs.extend(builder.logprobs(delta.logprobs))
    end = output.take_end()
    assert end is not None, "the choice has not finished"
    choice.finished.CopyFrom(builder.finished(end))
    return choice


def _finite(logprob: float) -> float:
    return _LOGPROB_FLOOR if math.isnan(logprob) else max(logprob, _LOGPROB_FLOOR)


class EventMaker:
    """Makes the events of one stream out of what its choices have to be taken; the log probabilities of its prompt are not among them."""

    def __init__(self, builder: ResponseBuilder, output: inference_pb2.OutputOptions) -> None:
        self._builder = builder
        self._max_tokens = max(output.stream_interval, _MAX_DELTA_TOKENS)
        if output.logprobs:
            self._max_tokens = min(self._max_tokens, _MAX_LOGPROBS // (1 + output.top_logprobs))
        self._min_tokens = min(output.stream_interval, self._max_tokens)

    def events(self, choices: Iterable[ChoiceOutput]) -> Iterator[inference_pb2.GenerateStreamResponse]:
        """What can be sent now, each message made when the one before it is on its way."""
        for choice in choices:
            num_pending = len(choice.token_ids)  # what comes while these are written is gathered for the next time
            while (num_pending > 0 or choice.is_finished) and (delta := choice.take(self._min_tokens, self._max_tokens)):
                num_pending -= len(delta.token_ids)
                event = inference_pb2.GenerateStreamResponse()
                self._builder.write_delta(delta, event.delta)
                yield event
            if end := choice.take_end():
                yield inference_pb2.GenerateStreamResponse(finished=self._builder.finished(end))


class EventWriter:
    """Writes events one after the other, and calls `give_up` when one has waited for its client for `timeout_seconds`.

    gRPC takes some megabytes for a client that does not read; then a write waits. One timer watches all writes of a stream: they are many.
    """

    def __init__(self, context: _Context, timeout_seconds: float, give_up: Callable[[], None]) -> None:
        self._context = context
        self._timeout_seconds = timeout_seconds
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch how long each write of the block takes."""
        self._timer = self._loop.call_later(self._timeout_seconds, self._check_timeout)
        try:
            yield
        finally:
            self._timer.cancel()

    async def write(self, event: inference_pb2.GenerateStreamResponse) -> None:
        """Return when the event is on its way and the next one may come."""
        self._waiting_since = self._loop.time()
        await self._context.write(event)
        self._waiting_since = None

    def _check_timeout(self) -> None:
        now = self._loop.time()
        due = self._timeout_seconds + (now if self._waiting_since is None else self._waiting_since)
        if due <= now:
            self._give_up()
        else:
            self._timer = self._loop.call_at(due, self._check_timeout)
