"""The engine's output as messages to clients."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from control_plane.core.step import TokenLogprob
from control_plane.edge.text.tokenizer import Tokenizer
from control_plane.engine.ports import FinishReason, Output, PromptLogprobs, SequenceDelta, SequenceFinished
from pypto_serving.inference.v1 import inference_pb2

#: A message has log probabilities of so many tokens of the prompt: with all alternatives some 30 KB, which slow readers take in time too.
_PROMPT_TOKENS = 64

#: Stands for the logarithm of a probability too small for one.
_LOGPROB_FLOOR = -9999.0

_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}


class ResponseBuilder:
    """Builds messages; it knows the bytes of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def delta(self, deltas: Sequence[SequenceDelta]) -> inference_pb2.Delta:
        """One message for consecutive deltas of a choice."""
        return inference_pb2.Delta(
            choice=deltas[0].choice,
            text="".join([delta.text for delta in deltas]),
            token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
            first_index=deltas[0].first_index,
            logprobs=self.logprobs(entry for delta in deltas for entry in delta.logprobs),
        )

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

    def finished(self, finished: SequenceFinished) -> inference_pb2.Finished:
        """The end of a choice."""
        message = inference_pb2.Finished(
            choice=finished.choice,
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
        if isinstance(finished.matched_stop, str):
            message.stop_string = finished.matched_stop
        elif finished.matched_stop is not None:
            message.stop_token_id = finished.matched_stop
        return message


def serialized_response(started: inference_pb2.Started, outputs: Sequence[Output], builder: ResponseBuilder) -> bytes:
    """The answer of a unary call from all output of its request, in its form on the wire; for a thread.

    Made of parts, whose forms one after the other are the form of the whole: no part is long to serialize.
    """
    parts = [inference_pb2.GenerateResponse(started=started).SerializeToString()]
    # A resume leaves out choices that had finished.
    ends = {output.choice: output for output in outputs if isinstance(output, SequenceFinished)}
    usage = inference_pb2.Usage(prompt_tokens=started.num_prompt_tokens, cached_tokens=ends[min(ends)].num_cached_tokens)
    for index in sorted(ends):
        deltas = [output for output in outputs if isinstance(output, SequenceDelta) and output.choice == index]
        choice = inference_pb2.Choice(index=index, finished=builder.finished(ends[index]))
        if deltas:
            joined = builder.delta(deltas)
            choice.text = joined.text
            choice.token_ids.extend(joined.token_ids)
            choice.logprobs.extend(joined.logprobs)
        parts.append(inference_pb2.GenerateResponse(choices=[choice]).SerializeToString())
        usage.completion_tokens += ends[index].num_generated_tokens
    for output in outputs:
        if isinstance(output, PromptLogprobs):
            entries = output.entries
            while batch := builder.next_prompt_logprobs(entries):
                parts.append(inference_pb2.GenerateResponse(prompt_logprobs=batch).SerializeToString())
    parts.append(inference_pb2.GenerateResponse(usage=usage).SerializeToString())
    return b"".join(parts)


def _finite(logprob: float) -> float:
    return _LOGPROB_FLOOR if math.isnan(logprob) else max(logprob, _LOGPROB_FLOOR)
