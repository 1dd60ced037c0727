"""The engine's output as messages to clients."""

import math
from collections.abc import Iterable, Sequence

from control_plane.core.step import TokenLogprob
from control_plane.edge.text.tokenizer import Tokenizer
from control_plane.engine.ports import FinishReason, Output, PromptLogprobs, SequenceDelta, SequenceFinished
from pypto_serving.inference.v1 import inference_pb2

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


def whole_response(started: inference_pb2.Started, outputs: Sequence[Output], builder: ResponseBuilder) -> inference_pb2.GenerateResponse:
    """The answer of a unary call from all output of its request."""
    response = inference_pb2.GenerateResponse(started=started)
    # A resume leaves out choices that had finished.
    ends = {output.choice: output for output in outputs if isinstance(output, SequenceFinished)}
    for index in sorted(ends):
        deltas = [output for output in outputs if isinstance(output, SequenceDelta) and output.choice == index]
        choice = response.choices.add(index=index, finished=builder.finished(ends[index]))
        if deltas:
            joined = builder.delta(deltas)
            choice.text = joined.text
            choice.token_ids.extend(joined.token_ids)
            choice.logprobs.extend(joined.logprobs)
    for output in outputs:
        if isinstance(output, PromptLogprobs):
            response.prompt_logprobs.extend(builder.logprobs(output.entries))
    usages = [choice.finished.usage for choice in response.choices]
    response.usage.prompt_tokens = started.num_prompt_tokens
    response.usage.completion_tokens = sum(usage.completion_tokens for usage in usages)
    response.usage.cached_tokens = usages[0].cached_tokens
    return response


def _finite(logprob: float) -> float:
    return _LOGPROB_FLOOR if math.isnan(logprob) else max(logprob, _LOGPROB_FLOOR)
