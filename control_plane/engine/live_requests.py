"""The requests that have not ended, and what is to be told about them."""

import logging

from control_plane.core.scheduler import Scheduler
from control_plane.core.sequence import Sequence
from control_plane.core.step import TokenLogprob
from control_plane.core.step_outcome import FailedSequence, StepOutcome
from control_plane.engine.generation import Generation, push_token
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import (
    Ending,
    Failure,
    FinishReason,
    GenerationRequest,
    Output,
    PromptLogprobs,
    RequestAccepted,
    RequestFailed,
)
from control_plane.engine.queue_limits import QueueLimits
from control_plane.engine.request import LiveRequest, begin
from control_plane.engine.stats import EngineStats

_logger = logging.getLogger(__name__)


class LiveRequests:
    """Turns requests into sequences, and what becomes of these into output. Every request gets exactly one end."""

    def __init__(self, scheduler: Scheduler, stats: EngineStats, options: EngineOptions) -> None:
        self.draining = False
        self._scheduler = scheduler
        self._stats = stats
        self._limits = QueueLimits(scheduler, options)
        self._requests: dict[str, LiveRequest] = {}
        self._generations: dict[Sequence, Generation] = {}
        self._outputs: list[Output] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def sequences(self) -> list[Sequence]:
        """Sequences of all live requests."""
        return list(self._generations)

    def is_held(self, sequence: Sequence) -> bool:
        """Whether the reader of a sequence is slow."""
        return self._generations[sequence].request.held

    def take_outputs(self) -> list[Output]:
        """Output since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    # Beginnings

    def make_way(self, spec: GenerationRequest) -> None:
        """End the live request that a resume takes over."""
        live = self._requests.get(spec.request_id)
        if live and spec.takes_over and live.spec.resume_key == spec.resume_key:
            self.fail(live, Failure.CANCELLED, "request taken over by a resume")

    def submit(self, spec: GenerationRequest, now: float) -> None:
        """Take a request in, or refuse it."""
        refusal = self._refusal(spec, now)
        if refusal:
            self._tell_failed(refusal)
            return
        try:
            live = begin(spec)
        except Exception:
            _logger.exception("request %s can not be taken in", spec.request_id)
            self._tell_internal(spec.request_id)
        else:
            self._start(live, now)

    def _start(self, live: LiveRequest, now: float) -> None:
        self._requests[live.spec.request_id] = live
        self._outputs.append(RequestAccepted(live.spec.request_id))
        for generation in live.open:
            self._generations[generation.sequence] = generation
            self._scheduler.submit(generation.sequence, now)
        if live.leader and live.leader.sampling.prompt_logprobs is not None and not live.leader.lacks_prompt_logprobs:
            self._tell_prompt_logprobs(live.leader)
        for generation, ending in live.ended:
            self._tell_finished(generation, ending, now)
        self._close(live)

    def _refusal(self, spec: GenerationRequest, now: float) -> RequestFailed | None:
        if spec.request_id in self._requests:
            return RequestFailed(spec.request_id, Failure.ALREADY_EXISTS, f"request_id {spec.request_id!r} is live")
        if self.draining:
            return RequestFailed(spec.request_id, Failure.UNAVAILABLE, "server is draining")
        if too_long := self._too_long(spec):
            return RequestFailed(spec.request_id, *too_long)
        if numerics_id := self._limits.unseen_numerics(spec, now):
            message = f"no worker with numerics id {numerics_id!r} has been in session"
            return RequestFailed(spec.request_id, Failure.UNAVAILABLE, message)
        if overflow := self._limits.overflow(spec):
            retry = self._stats.retry_after_seconds
            return RequestFailed(spec.request_id, Failure.QUEUE_FULL, f"queue is full: {overflow}; retry in {retry:.1f} s", retry)
        return None

    def _too_long(self, spec: GenerationRequest) -> tuple[Failure, str] | None:
        limit, length = self._scheduler.max_model_len, len(spec.prompt_token_ids) + spec.max_tokens
        if limit is None or length <= limit:
            return None
        lengths = f"prompt of {len(spec.prompt_token_ids)} tokens and max_tokens {spec.max_tokens} make {length}, max_model_len is {limit}"
        return Failure.UNAVAILABLE if spec.takes_over else Failure.INVALID_ARGUMENT, lengths  # what is resumed did fit once

    # What workers bring

    def take(self, outcome: StepOutcome, now: float) -> None:
        """Take in what a step brought. A request that ends on the way is skipped from there on."""
        for sequence in outcome.prompt_logprobs:
            if sequence in self._generations:
                self._tell_prompt_logprobs(sequence)
        for sequence, token_id, logprob in outcome.tokens:
            generation = self._generations.get(sequence)
            if generation:
                self._take_token(generation, token_id, logprob, now)
        for sequence in outcome.computed:
            if sequence in self._generations:
                self._finish(self._generations[sequence], Ending(FinishReason.LENGTH), now)
        self.take_failed(outcome.failed)

    def take_failed(self, failures: list[FailedSequence]) -> None:
        """End the requests of sequences that can not go on."""
        for failed in failures:
            sequence = failed.sequence
            if failed.nothing_to_draw:
                where = f"choice {sequence.choice} can draw no token at index {sequence.num_generated_tokens}"
                self.fail_sequence(sequence, Failure.INVALID_ARGUMENT, f"{where}: {failed.message}")
            else:
                self.fail_sequence(sequence, Failure.INTERNAL, f"{failed.message}, request_id {sequence.request_id!r}")

    def _take_token(self, generation: Generation, token_id: int, logprob: TokenLogprob | None, now: float) -> None:
        spec = generation.request.spec
        try:
            text, ending = push_token(spec, generation.text, token_id, generation.sequence.num_generated_tokens)
        except Exception:
            _logger.exception("text of request %s failed", spec.request_id)
            self._forget(generation.request)
            self._tell_internal(spec.request_id)
            return
        self._stats.generated(generation, now)
        self._outputs.append(generation.delta(token_id, text, logprob))
        if ending:
            self._finish(generation, ending, now)

    # Pauses

    def hold(self, request_id: str, now: float) -> None:
        """Let a request produce nothing until `unhold`; nothing happens if it is not live or held already."""
        live = self._requests.get(request_id)
        if live and not live.held:
            live.held = True
            for generation in live.open:
                self._scheduler.hold(generation.sequence, now)

    def unhold(self, request_id: str, now: float) -> None:
        """Let a held request go on."""
        live = self._requests.get(request_id)
        if live and live.held:
            live.held = False
            for generation in live.open:
                generation.last_token_time = None  # the gap is the reader's
                self._scheduler.unhold(generation.sequence, now)

    # Ends

    def end(self, request_id: str, failure: Failure, message: str) -> bool:
        """End a request without a result, wherever it is; returns whether it was live."""
        live = self._requests.get(request_id)
        if live:
            self.fail(live, failure, message)
        return live is not None

    def drain(self) -> None:
        """Refuse what comes, and end what never ran."""
        self.draining = True
        for live in list(self._requests.values()):
            if all(generation.sequence.num_admissions == 0 for generation in live.open):
                self.fail(live, Failure.UNAVAILABLE, "server is draining")

    def fail_too_long(self) -> None:
        """End what was taken in before the limit was known and does not fit it."""
        for live in list(self._requests.values()):
            if too_long := self._too_long(live.spec):
                self.fail(live, *too_long)

    def fail_sequence(self, sequence: Sequence, failure: Failure, message: str) -> None:
        """End the request of a sequence, if it is still live."""
        generation = self._generations.get(sequence)
        if generation:
            self.fail(generation.request, failure, message)

    def fail(self, live: LiveRequest, failure: Failure, message: str) -> None:
        """End a request without a result."""
        self._forget(live)
        self._tell_failed(RequestFailed(live.spec.request_id, failure, message))

    def abandon(self) -> None:
        """End every request, in whatever state the scheduler is, which is to forget them on its own."""
        self._generations.clear()
        for request_id in list(self._requests):
            del self._requests[request_id]
            self._tell_internal(request_id)

    def _finish(self, generation: Generation, ending: Ending, now: float) -> None:
        live = generation.request
        live.open.remove(generation)
        del self._generations[generation.sequence]
        self._scheduler.finish(generation.sequence)
        self._tell_finished(generation, ending, now)
        self._close(live)

    def _close(self, live: LiveRequest) -> None:
        """Forget a request once every choice has ended."""
        if not live.open:
            del self._requests[live.spec.request_id]
            self._stats.observed.finished.append(live.reason)

    def _tell_finished(self, generation: Generation, ending: Ending, now: float) -> None:
        finished = generation.finished(ending, now)
        self._outputs.append(finished)
        self._stats.finished(generation, finished)
        if ending.reason is FinishReason.LENGTH:
            generation.request.reason = FinishReason.LENGTH

    def _forget(self, live: LiveRequest) -> None:
        for generation in live.open:
            del self._generations[generation.sequence]
            self._scheduler.finish(generation.sequence)
        del self._requests[live.spec.request_id]

    def _tell_internal(self, request_id: str) -> None:
        self._tell_failed(RequestFailed(request_id, Failure.INTERNAL, f"internal error, request_id {request_id!r}"))

    def _tell_failed(self, failed: RequestFailed) -> None:
        self._stats.observed.failed.append(failed.failure)
        self._outputs.append(failed)

    def _tell_prompt_logprobs(self, sequence: Sequence) -> None:
        self._outputs.append(PromptLogprobs(sequence.request_id, tuple(sequence.prompt_logprobs)))
