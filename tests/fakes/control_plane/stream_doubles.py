"""What surrounds the streams of calls in tests: an engine that notes what it is told, text, requests and output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import TokenLogprob, ids
from control_plane.edge.service.backlog import Backlog, UnwrittenTotal
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.edge.service.request_stream import RequestStream
from control_plane.engine.ports import ChoiceSpec, Failure, FinishReason, GenerationRequest, Outputs, RequestFailed, SequenceFinished
from control_plane.engine.snapshot import EngineSnapshot


class NotedEngine:
    """An EnginePort that notes what it is told, and does nothing."""

    snapshot = EngineSnapshot()

    def __init__(self) -> None:
        self.submitted: list[GenerationRequest] = []
        self.calls: list[tuple[object, ...]] = []

    def seconds_since_turn(self) -> float:
        return 0.0

    def submit(self, request: GenerationRequest) -> None:
        self.submitted.append(request)

    def finish(self, number: int) -> None:
        self.calls.append(("finish", number))

    def hold(self, request_id: str) -> None:
        self.calls.append(("hold", request_id))

    def unhold(self, request_id: str) -> None:
        self.calls.append(("unhold", request_id))

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        self.calls.append(("end", request_id, failure))

    async def abort(self, request_id: str) -> bool:
        self.calls.append(("abort", request_id))
        return False

    def drain(self) -> None:
        self.calls.append(("drain",))


@dataclass
class FixedWindow:
    """For how long streams gather output, whatever there is to do."""

    window_seconds: float = 0.0


class PieceText:
    """Text of ids as `<id>`; holds back what may become a stop string. Stands in for a SequenceTextStream."""

    def __init__(self, stop: Sequence[str] = (), broken_at: int | None = None) -> None:
        self.matched_stop: str | None = None
        self.has_stops = bool(stop)
        self._stop = stop
        self._held = ""
        self._broken_at = broken_at

    def push(self, token_id: int) -> str:
        assert self.matched_stop is None
        if token_id == self._broken_at:
            raise RuntimeError("broken text")
        self._held += f"<{token_id}>"
        for stop in self._stop:
            if stop in self._held:
                self.matched_stop = stop
                shown, self._held = self._held[: self._held.index(stop)], ""
                return shown
        keep = max((len(stop) - 1 for stop in self._stop), default=0)
        shown = self._held[: max(0, len(self._held) - keep)]
        self._held = self._held[len(shown) :]
        return shown

    def push_all(self, token_ids: Sequence[int]) -> str:
        return "".join([self.push(token_id) for token_id in token_ids])

    def finish(self) -> str:
        shown, self._held = self._held, ""
        return shown


def make_output(index: int = 0, text: PieceText | None = None, **text_options: Any) -> ChoiceOutput:
    """The output of choice `index`, whose number is 10 + index."""
    return ChoiceOutput(index, 10 + index, text or PieceText(**text_options))  # type: ignore[arg-type]


def make_request(request_id: str = "x", outputs: Sequence[ChoiceOutput] = (), **changes: Any) -> GenerationRequest:
    """A request with a choice for each output; `sampling` goes to all of them."""
    sampling = changes.pop("sampling", SamplingParams())
    choices = [ChoiceSpec(output.index, output.number, sampling) for output in outputs]
    fields = {"resume_key": b"key", "prompt_token_ids": [1], "max_tokens": 9, "min_tokens": 0, "end_token_ids": frozenset(), **changes}
    return GenerationRequest(request_id=request_id, choices=choices, arrival_time=0.0, **fields)


_S = TypeVar("_S", bound=RequestStream)


def make_stream(*outputs: ChoiceOutput, kind: type[_S] = RequestStream) -> _S:  # type: ignore[assignment]
    """A stream whose request is never held."""

    def never() -> None:
        raise AssertionError("its client is not slow")

    return kind(make_request("x", outputs), outputs, Backlog(None, 4, UnwrittenTotal(), never, never))


def accepted(request_id: str = "x") -> Outputs:
    """The engine takes a request in."""
    return Outputs(accepted=[request_id])


def tokens(*token_ids: int, number: int = 10, finished: SequenceFinished | None = None, logprobs: Sequence[TokenLogprob] = ()) -> Outputs:
    """Tokens of one choice, perhaps its last ones."""
    ends = [finished] if finished else []
    return Outputs(numbers=ids([number] * len(token_ids)), token_ids=ids(token_ids), logprobs=list(enumerate(logprobs)), finished=ends)


def end_of(number: int = 10, count: int = 3, end_token_id: int | None = None, **changes: Any) -> SequenceFinished:
    """The end of a choice after `count` tokens."""
    fields = {"num_prompt_tokens": 1, "num_cached_tokens": 0, "num_readmissions": 0, "queue_seconds": 0.1, **changes}
    reason = FinishReason.LENGTH if end_token_id is None else FinishReason.STOP
    fields = {"reason": reason, "first_token_seconds": 0.2, "total_seconds": 0.3, **fields}
    return SequenceFinished(number=number, end_token_id=end_token_id, num_generated_tokens=count, **fields)


def failed(failure: Failure, message: str, request_id: str = "x") -> Outputs:
    """The engine ends a request."""
    return Outputs(failed=[RequestFailed(request_id, failure, message)])
