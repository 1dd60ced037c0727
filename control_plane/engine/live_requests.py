"""The requests that have not ended, and what is to be told about them."""

import logging

from control_plane.core.replica import FailedSequence, StepOutcome
from control_plane.core.scheduler import Scheduler
from control_plane.core.sequence import Sequence
from control_plane.core.step import TokenLogprob
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import (
    Failure,
    FinishReason,
    GenerationRequest,
    Output,
    PromptLogprobs,
    RequestAccepted,
    RequestFailed,
)
from control_plane.engine.request import Ending, Generation, LiveRequest, push_token
from control_plane.engine.stats import EngineStats

_logger = logging.getLogger(__name__)

#: Bounds of the advice when to come back after a full queue, in seconds.
_MIN_RETRY, _MAX_RETRY = 0.1, 60.0


class LiveRequests:
    """Turns requests into sequences, and what becomes of these into output. Every request gets exactly one end."""

    def __init__(self, scheduler: Scheduler, stats: EngineStats, options: EngineOptions) -> None:
        self.draining = False
        self._scheduler = scheduler
        self._stats = stats
        self._options = options
        self._requests: dict[str, LiveRequest] = {}
        self._generations: dict[Sequence, Generation] = {}
        self._outputs: list[Output] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def sequences(self) -> list[Sequence]:
        """Sequences of all live requests."""
        return list(self._generations)

    def take_outputs(self) -> list[Output]:
        """Output since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    # Beginnings

    def submit(self, spec: GenerationRequest, now: float) -> None:
        """Take a request in, or refuse it."""
        live = self._requests.get(spec.request_id)
        if live and spec.takes_over and live.spec.resume_key == spec.resume_key:
            self.fail(live, Failure.CANCELLED, "request taken over by a resume")
        refusal = self._refusal(spec)
        if refusal:
            self._tell_failed(refusal)
            return
        try:
            self._begin(spec, now)
        except Exception:
            _logger.exception("request %s can not be taken in", spec.request_id)
            self.fail_internal(spec.request_id)

    def _begin(self, spec: GenerationRequest, now: float) -> None:
        live = self._requests[spec.request_id] = LiveRequest(spec)
        self._outputs.append(RequestAccepted(spec.request_id))
        endings = [live.add(choice) for choice in spec.choices]
        for generation, ending in endings:
            sequence = generation.sequence
            self._scheduler.submit(sequence, now)
            self._generations[sequence] = generation
            if sequence.sampling.prompt_logprobs is not None and not sequence.lacks_prompt_logprobs:
                self._tell_prompt_logprobs(sequence)
            if ending:
                self._finish(generation, ending, now)

    def _refusal(self, spec: GenerationRequest) -> RequestFailed | None:
        waiting, options = self._scheduler.waiting, self._options
        num_tokens = waiting.num_tokens + len(spec.prompt_token_ids)
        too_long = self._too_long(spec)
        if spec.request_id in self._requests:
            return RequestFailed(spec.request_id, Failure.ALREADY_EXISTS, f"request_id {spec.request_id!r} is live")
        if self.draining:
            return RequestFailed(spec.request_id, Failure.UNAVAILABLE, "server is draining")
        if too_long:
            return RequestFailed(spec.request_id, Failure.INVALID_ARGUMENT, too_long)
        if len(waiting) >= options.max_queued_requests:
            return self._queue_full(spec, f"{len(waiting)} requests wait, limit {options.max_queued_requests}")
        if len(waiting) and num_tokens > options.max_queued_tokens:
            return self._queue_full(spec, f"{waiting.num_tokens} tokens wait, limit {options.max_queued_tokens}")
        return None

    def _too_long(self, spec: GenerationRequest) -> str | None:
        limit, length = self._scheduler.max_model_len, len(spec.prompt_token_ids) + spec.max_tokens
        if limit is None or length <= limit:
            return None
        return f"prompt of {len(spec.prompt_token_ids)} tokens and max_tokens {spec.max_tokens} make {length}, max_model_len is {limit}"

    def _queue_full(self, spec: GenerationRequest, numbers: str) -> RequestFailed:
        retry = min(max(self._stats.mean_queue_seconds, _MIN_RETRY), _MAX_RETRY)
        message = f"queue is full: {numbers}; retry in {retry:.1f} s"
        return RequestFailed(spec.request_id, Failure.QUEUE_FULL, message, retry)

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
            failure = Failure.INVALID_ARGUMENT if failed.nothing_to_draw else Failure.INTERNAL
            self.fail_sequence(failed.sequence, failure, f"{failed.message}, request_id {failed.sequence.request_id!r}")

    def _take_token(self, generation: Generation, token_id: int, logprob: TokenLogprob | None, now: float) -> None:
        spec = generation.request.spec
        try:
            text, ending = push_token(spec, generation.text, token_id, generation.sequence.num_generated_tokens)
        except Exception:
            _logger.exception("text of request %s failed", spec.request_id)
            self.fail_internal(spec.request_id)
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
            for sequence in self._open_sequences(live):
                self._scheduler.hold(sequence, now)

    def unhold(self, request_id: str, now: float) -> None:
        """Let a held request go on."""
        live = self._requests.get(request_id)
        if live and live.held:
            live.held = False
            for sequence in self._open_sequences(live):
                self._scheduler.unhold(sequence, now)

    def _open_sequences(self, live: LiveRequest) -> list[Sequence]:
        """Sequences of the choices that have not ended."""
        return [generation.sequence for generation in live.generations if generation.sequence in self._generations]

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
            if all(generation.sequence.num_admissions == 0 for generation in live.generations):
                self.fail(live, Failure.UNAVAILABLE, "server is draining")

    def fail_too_long(self) -> None:
        """End what was taken in before the limit was known and does not fit it."""
        for live in list(self._requests.values()):
            message = self._too_long(live.spec)
            if message:
                self.fail(live, Failure.INVALID_ARGUMENT, message)

    def fail_sequence(self, sequence: Sequence, failure: Failure, message: str) -> None:
        """End the request of a sequence, if it is still live."""
        generation = self._generations.get(sequence)
        if generation:
            self.fail(generation.request, failure, message)

    def fail_internal(self, request_id: str) -> None:
        """End a request because of a defect of ours."""
        self.end(request_id, Failure.INTERNAL, f"internal error, request_id {request_id!r}")

    def fail(self, live: LiveRequest, failure: Failure, message: str) -> None:
        """End a request without a result."""
        for generation in live.generations:
            if self._generations.pop(generation.sequence, None):
                self._scheduler.finish(generation.sequence)
        del self._requests[live.spec.request_id]
        self._tell_failed(RequestFailed(live.spec.request_id, failure, message))

    def abandon(self) -> None:
        """End every request, in whatever state the scheduler is, which is to forget them on its own."""
        self._generations.clear()
        for request_id in list(self._requests):
            del self._requests[request_id]
            self._tell_failed(RequestFailed(request_id, Failure.INTERNAL, f"internal error, request_id {request_id!r}"))

    def _finish(self, generation: Generation, ending: Ending, now: float) -> None:
        live = generation.request
        finished = generation.finished(ending, now)
        del self._generations[generation.sequence]
        self._scheduler.finish(generation.sequence)
        if not any(other.sequence in self._generations for other in live.generations):
            del self._requests[live.spec.request_id]
        self._stats.finished(generation, finished)
        self._outputs.append(finished)

    def _tell_failed(self, failed: RequestFailed) -> None:
        self._stats.observed.failed.append(failed.failure)
        self._outputs.append(failed)

    def _tell_prompt_logprobs(self, sequence: Sequence) -> None:
        self._outputs.append(PromptLogprobs(sequence.request_id, tuple(sequence.prompt_logprobs)))
