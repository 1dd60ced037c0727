"""Events of a stream: the engine's output, in messages that are neither too many nor too large."""

from collections import Counter
from collections.abc import Iterator, Sequence

from control_plane.edge.service.streams.responses import ResponseBuilder
from control_plane.engine.ports import Output, SequenceDelta, SequenceFinished
from pypto_serving.inference.v1 import inference_pb2

#: However much a slow client has let pile up, it gets messages that it can take in time, and that take some milliseconds to make: so many
#: tokens unless it has asked for more at a time, and so many log probabilities of all of them together, alternatives included.
_MAX_DELTA_TOKENS, _MAX_LOGPROBS = 64, 1024


class DeltaGatherer:
    """Joins deltas until there are enough tokens for a message. Log probabilities of the prompt are no affair of it."""

    def __init__(self, builder: ResponseBuilder, output: inference_pb2.OutputOptions) -> None:
        self._builder = builder
        self._max_tokens = max(output.stream_interval, _MAX_DELTA_TOKENS)
        if output.logprobs:
            self._max_tokens = min(self._max_tokens, _MAX_LOGPROBS // (1 + output.top_logprobs))
        self._interval = min(output.stream_interval, self._max_tokens)
        self._gathered: dict[int, list[SequenceDelta]] = {}
        self._numerics: dict[int, str] = {}  # last sent, by choice
        self._num_gathered: Counter[int] = Counter()  # tokens, by choice

    def events(self, outputs: Sequence[Output]) -> Iterator[inference_pb2.GenerateStreamResponse]:
        """What can be sent now, each message made when the one before it is on its way."""
        for output in outputs:
            match output:
                case SequenceDelta():
                    yield from self._gather(output)
                case SequenceFinished():
                    yield from self._flush(output.choice)
                    yield inference_pb2.GenerateStreamResponse(finished=self._builder.finished(output))
        for choice in [choice for choice, count in self._num_gathered.items() if count >= self._interval]:
            yield from self._flush(choice)

    def _gather(self, delta: SequenceDelta) -> list[inference_pb2.GenerateStreamResponse]:
        """Take a delta; what was gathered before goes first if it was computed in another way, and all of it if it is much."""
        choice = delta.choice
        before = self._gathered.get(choice)
        events = self._flush(choice) if before and before[0].numerics_id != delta.numerics_id else []
        self._gathered.setdefault(choice, []).append(delta)
        self._num_gathered[choice] += len(delta.token_ids)
        return events + self._flush(choice) if self._num_gathered[choice] >= self._max_tokens else events

    def _flush(self, choice: int) -> list[inference_pb2.GenerateStreamResponse]:
        deltas = self._gathered.pop(choice, None)
        self._num_gathered[choice] = 0
        if not deltas:
            return []
        message = self._builder.delta(deltas)
        if self._numerics.get(choice) != deltas[0].numerics_id:
            self._numerics[choice] = message.numerics_id = deltas[0].numerics_id
        return [inference_pb2.GenerateStreamResponse(delta=message)]
