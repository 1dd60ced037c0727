"""An engine for front ends, without workers: what a request generates is a pure function of its id, the choice and the index."""

from collections.abc import Callable
from dataclasses import dataclass, field

from control_plane.core.step import TokenLogprob, ids
from control_plane.engine.ports import (
    Failure,
    FinishReason,
    FrontEnd,
    GenerationRequest,
    Outputs,
    PromptLogprobs,
    RequestFailed,
    SequenceFinished,
)
from control_plane.engine.snapshot import EngineSnapshot

VOCAB_SIZE = 1000
NUMERICS_ID = "fake numerics"


def token_at(request_id: str, choice: int, index: int) -> int:
    """The token at an index of a choice."""
    return (sum(request_id.encode()) * 31 + choice * 17 + index * 7) % VOCAB_SIZE


def expected_tokens(request: GenerationRequest, choice: int) -> list[int]:
    """All tokens of a choice that nobody disturbs."""
    tokens: list[int] = []
    while len(tokens) < request.max_tokens:
        tokens.append(token_at(request.request_id, choice, len(tokens)))
        if tokens[-1] in request.end_token_ids and len(tokens) > request.min_tokens:
            break
    return tokens


def logprob_of(token_id: int, num_alternatives: int) -> TokenLogprob:
    """The log probability of a token; exact in float32."""
    top = tuple(((token_id + rank) % VOCAB_SIZE, -0.5 * rank) for rank in range(num_alternatives))
    return TokenLogprob(token_id, -token_id / 64, top)


@dataclass
class _Choice:
    request: GenerationRequest
    front_end: FrontEnd
    index: int
    token_ids: list[int]
    has_begun: bool = False


@dataclass
class SessionEngine:
    """Implements what sessions need of an engine. Nothing is generated but in `step`; every pass is published at once."""

    checks_resumes: bool = True
    refuses_new: bool = False  # the queue is full
    withholds_acceptance: bool = False
    submitted: list[GenerationRequest] = field(default_factory=list)
    calls: list[tuple] = field(default_factory=list)  # others, in order
    live: dict[str, FrontEnd] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    draining: set[int] = field(default_factory=set)
    snapshot: EngineSnapshot = field(default_factory=lambda: EngineSnapshot(max_model_len=4096))
    _choices: dict[tuple[int, int], _Choice] = field(default_factory=dict)  # by front end and number
    _to_accept: list[tuple[FrontEnd, str]] = field(default_factory=list)

    def submit(self, request: GenerationRequest, front_end: FrontEnd) -> None:
        self.submitted.append(request)
        owner = self.live.get(request.request_id)
        if owner is not None and request.takes_over:
            self._fail(owner, request.request_id, Failure.CANCELLED, "request taken over by a resume")
        elif owner is not None:
            self._refuse(front_end, request, Failure.ALREADY_EXISTS)
            return
        if not request.was_accepted and (self.refuses_new or id(front_end) in self.draining):
            self._refuse(front_end, request, Failure.QUEUE_FULL if self.refuses_new else Failure.UNAVAILABLE)
            return
        if request.choices:
            self.live[request.request_id] = front_end
        for choice in request.choices:
            resumed = list(choice.resumed_token_ids)
            if self.checks_resumes:
                assert resumed == expected_tokens(request, choice.index)[: len(resumed)], "resumed tokens are not those generated"
                assert len(resumed) < len(expected_tokens(request, choice.index)), "a choice that has ended is submitted"
            self._choices[id(front_end), choice.number] = _Choice(request, front_end, choice.index, resumed)
        self._to_accept.append((front_end, request.request_id))
        if not self.withholds_acceptance:
            self.accept()

    def accept(self) -> None:
        """Tell front ends what was accepted."""
        accepted, self._to_accept = self._to_accept, []
        for front_end, request_id in accepted:
            front_end.publish(Outputs(accepted=[request_id]))

    def start(self, *request_ids: str) -> None:
        """Tell front ends that requests run."""
        for request_id in request_ids:
            self.live[request_id].publish(Outputs(started=[request_id]))

    def finish(self, front_end: FrontEnd, number: int) -> None:
        self.calls.append(("finish", number))
        if (id(front_end), number) in self._choices:
            outputs = Outputs(finished=[self._end(front_end, number, FinishReason.STOP, None)])
            front_end.publish(outputs)

    def end(self, front_end: FrontEnd, request_id: str, failure: Failure, message: str) -> None:
        self.calls.append(("end", request_id, failure, message))
        if self.live.get(request_id) is front_end:
            self._fail(front_end, request_id, failure, message)

    def hold(self, front_end: FrontEnd, request_id: str) -> None:
        self.calls.append(("hold", request_id))
        if self.live.get(request_id) is front_end:
            self.held.add(request_id)

    def unhold(self, front_end: FrontEnd, request_id: str) -> None:
        self.calls.append(("unhold", request_id))
        if self.live.get(request_id) is front_end:
            self.held.discard(request_id)

    def drain(self, front_end: FrontEnd) -> None:
        self.calls.append(("drain",))
        self.draining.add(id(front_end))

    def close_front_end(self, front_end: FrontEnd) -> None:
        self.calls.append(("close",))
        for key in [key for key in self._choices if key[0] == id(front_end)]:
            self._forget(key)
        self._to_accept = [entry for entry in self._to_accept if entry[0] is not front_end]

    def abort(self, request_id: str) -> bool:
        if request_id not in self.live:
            return False
        self._fail(self.live[request_id], request_id, Failure.CANCELLED, "request aborted")
        return True

    def take_snapshot(self) -> EngineSnapshot:
        return self.snapshot

    def step(self, runs: Callable[[str], bool] = lambda request_id: True) -> None:
        """One token for every choice of requests that run and are not held; each front end gets one pass."""
        self.accept()
        passes: dict[int, tuple[FrontEnd, Outputs]] = {}
        for (_, number), choice in list(self._choices.items()):
            request_id = choice.request.request_id
            if request_id not in self.held and runs(request_id):
                _, outputs = passes.setdefault(id(choice.front_end), (choice.front_end, Outputs()))
                self._generate(number, choice, outputs)
        for front_end, outputs in passes.values():
            front_end.publish(outputs)

    def _generate(self, number: int, choice: _Choice, outputs: Outputs) -> None:
        request, sampling = choice.request, next(spec.sampling for spec in choice.request.choices if spec.number == number)
        if not choice.has_begun:
            outputs.numerics.append((number, NUMERICS_ID))
            if request.request_id not in outputs.started:
                outputs.started.append(request.request_id)
            if sampling.prompt_logprobs is not None and number == request.choices[0].number:
                outputs.prompt_logprobs.append(prompt_logprobs_of(request, sampling.prompt_logprobs))
        choice.has_begun = True
        token_id = token_at(request.request_id, choice.index, len(choice.token_ids))
        choice.token_ids.append(token_id)
        if sampling.logprobs:
            outputs.logprobs.append((len(outputs.numbers), logprob_of(token_id, sampling.top_logprobs)))
        outputs.numbers.append(number)
        outputs.token_ids.append(token_id)
        if token_id in request.end_token_ids and len(choice.token_ids) > request.min_tokens:
            outputs.finished.append(self._end(choice.front_end, number, FinishReason.STOP, token_id))
        elif len(choice.token_ids) >= request.max_tokens:
            outputs.finished.append(self._end(choice.front_end, number, FinishReason.LENGTH, None))

    def _end(self, front_end: FrontEnd, number: int, reason: FinishReason, end_token_id: int | None) -> SequenceFinished:
        choice = self._forget((id(front_end), number))
        return SequenceFinished(
            number=number,
            reason=reason,
            end_token_id=end_token_id,
            num_prompt_tokens=len(choice.request.prompt_token_ids),
            num_generated_tokens=len(choice.token_ids),
            num_cached_tokens=1,
            num_readmissions=0,
            queue_seconds=0.25,
            first_token_seconds=0.5,
            total_seconds=1.0,
        )

    def _fail(self, front_end: FrontEnd, request_id: str, failure: Failure, message: str) -> None:
        for key in [key for key, choice in self._choices.items() if choice.request.request_id == request_id]:
            self._forget(key)
        front_end.publish(Outputs(failed=[RequestFailed(request_id, failure, message)]))

    def _refuse(self, front_end: FrontEnd, request: GenerationRequest, failure: Failure) -> None:
        retry = 0.5 if failure is Failure.QUEUE_FULL else None
        front_end.publish(Outputs(failed=[RequestFailed(request.request_id, failure, "refused", retry)]))

    def _forget(self, key: tuple[int, int]) -> _Choice:
        choice = self._choices.pop(key)
        if not any(other.request is choice.request for other in self._choices.values()):
            del self.live[choice.request.request_id]
            self.held.discard(choice.request.request_id)
        return choice


def prompt_logprobs_of(request: GenerationRequest, num_alternatives: int) -> PromptLogprobs:
    """Log probabilities of a prompt."""
    prompt = ids(request.prompt_token_ids)
    return PromptLogprobs(
        request.request_id, [(TokenLogprob(prompt[0], None),), [logprob_of(token_id, num_alternatives) for token_id in prompt[1:]]]
    )
