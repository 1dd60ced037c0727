"""The requests that have not ended, and what is to be published about them."""

import hmac
import logging
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from control_plane.core.replica import Replica
from control_plane.core.scheduler import Scheduler
from control_plane.core.sequence import FailedSequence, Sequence, SequenceUpdates
from control_plane.engine.choice_batch import ChoiceBatch
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import (
    ConstraintMaker,
    Failure,
    FinishReason,
    FrontEnd,
    GenerationRequest,
    Outputs,
    PromptLogprobs,
    RequestFailed,
)
from control_plane.engine.queue_limits import QueueLimits
from control_plane.engine.quotas import Quotas
from control_plane.engine.request import FrontEndRequests, LiveChoice, LiveRequest, TokenTime, begin
from control_plane.engine.snapshot import SequenceState
from control_plane.engine.stats import EngineStats

_log = logging.getLogger(__name__)

_TAKEN_OVER = "request taken over by a resume"
_DRAINING = "the server is draining and runs nothing new: send the request to another one"


class LiveRequests:
    """Turns requests into sequences, and what becomes of these into output.

    Every request gets exactly one end, unless its front end is closed.
    """

    def __init__(
        self, scheduler: Scheduler, stats: EngineStats, quotas: Quotas, constraints: ConstraintMaker | None, options: EngineOptions
    ) -> None:
        self._scheduler = scheduler
        self._quotas = quotas
        self._stats = stats
        self._constraints = constraints
        self._limits = QueueLimits(scheduler, options)
        self._front_ends: dict[FrontEnd, FrontEndRequests] = {}
        self._requests: dict[str, LiveRequest] = {}  # of all front ends, by id
        self._choices: dict[Sequence, LiveChoice] = {}
        self._batches: WeakKeyDictionary[Replica, ChoiceBatch] = WeakKeyDictionary()  # of the last step of each

    def __len__(self) -> int:
        return len(self._requests)

    def states(self, now: float, with_token_ids: bool) -> tuple[SequenceState, ...]:
        """Describe the sequences of all live requests."""
        return tuple(SequenceState.of(choice.sequence, choice.request.held, now, with_token_ids) for choice in self._choices.values())

    def pop_outputs(self) -> list[tuple[FrontEnd, Outputs]]:
        """Output since the last call, for those front ends that have some."""
        return [(owner.front_end, owner.pop_outputs()) for owner in self._front_ends.values() if not owner.outputs.is_empty]

    # Beginnings

    def end_replaced(self, spec: GenerationRequest) -> None:
        """End the live request that a resume takes over, from whatever front end; not one that came later.

        A front end that stood still submits its requests again while the client of one has long gone on at another front end.
        """
        live = self._requests.get(spec.request_id)
        if live and _has_key(spec, live) and spec.arrival_time >= live.spec.arrival_time:
            self.fail(live, Failure.CANCELLED, _TAKEN_OVER)

    def submit(self, spec: GenerationRequest, front_end: FrontEnd, now: float) -> None:
        """Accept a request, or refuse it."""
        owner = self._owner(front_end)
        refusal = self._conflict(spec) or (None if spec.was_accepted else self._refusal(spec, owner, now))
        if refusal:
            self._emit_usage(owner, spec)
            self._emit_failure(owner, refusal)
            return
        try:
            live = begin(spec, owner, self._constraints)
        except Exception:
            _log.exception("request %s cannot be taken in", spec.request_id)
            self._emit_internal_error(owner, spec.request_id)
        else:
            self._start(live, now)

    def _owner(self, front_end: FrontEnd) -> FrontEndRequests:
        if front_end not in self._front_ends:
            self._front_ends[front_end] = FrontEndRequests(front_end)
        return self._front_ends[front_end]

    def _start(self, live: LiveRequest, now: float) -> None:
        self._requests[live.spec.request_id] = live
        self._quotas.open(live)
        self._emit_usage(live.owner, live.spec)
        live.owner.outputs.accepted.append(live.spec.request_id)
        if _log.isEnabledFor(logging.DEBUG):
            facts = {"prompt_tokens": len(live.spec.prompt_token_ids), "choices": len(live.open), "resumed": live.spec.takes_over}
            _log.debug("request taken in", extra={"request_id": live.spec.request_id, **facts})
        for choice in live.open:
            self._choices[choice.sequence] = live.owner.choices[choice.number] = choice
            self._scheduler.submit(choice.sequence, now)
        if live.leader and live.leader.sampling.prompt_logprobs is not None and not live.leader.lacks_prompt_logprobs:
            self._emit_prompt_logprobs(live.leader)
        self._close(live)

    def _conflict(self, spec: GenerationRequest) -> RequestFailed | None:
        live = self._requests.get(spec.request_id)
        if live is None:
            return None
        if _has_key(spec, live):
            return RequestFailed(spec.request_id, Failure.CANCELLED, _TAKEN_OVER)
        message = f"request_id {spec.request_id!r} is live: choose another one, or resume the request with its key"
        return RequestFailed(spec.request_id, Failure.ALREADY_EXISTS, message)

    def _refusal(self, spec: GenerationRequest, owner: FrontEndRequests, now: float) -> RequestFailed | None:
        if owner.is_draining:
            return RequestFailed(spec.request_id, Failure.UNAVAILABLE, _DRAINING)
        if too_long := self._too_long(spec):
            return RequestFailed(spec.request_id, *too_long)
        if over_quota := self._quotas.refusal(spec):
            return over_quota
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

    def apply(self, updates: SequenceUpdates, now: float) -> None:
        """Apply what a step brought. A request that ends on the way is skipped from there on."""
        for sequence in updates.prompt_logprobs:
            if sequence in self._choices:
                self._emit_prompt_logprobs(sequence)
        self._emit_tokens(updates, now)
        for sequence, end_token_id in updates.ended:
            if sequence in self._choices:
                self._end(self._choices[sequence], FinishReason.LENGTH if end_token_id is None else FinishReason.STOP, end_token_id, now)
        self.fail_sequences(updates.failed)

    def note_started(self, sequences: Iterable[Sequence]) -> None:
        """Tell which requests run now: these sequences are the first of theirs to do so."""
        for sequence in sequences:
            if choice := self._choices.get(sequence):
                choice.owner.outputs.started.append(sequence.request_id)

    def _emit_tokens(self, updates: SequenceUpdates, now: float) -> None:
        if not updates.sequences:
            return
        replica = updates.sequences[0].replica
        assert replica is not None
        batch = self._batches.get(replica)
        if batch is None or batch.sequences != updates.sequences or batch.numerics_id != updates.numerics_id:
            batch = self._batches[replica] = self._begin_batch(updates, now)
        else:
            self._stats.count_batch(batch, now)
        batch.time.seconds = now
        self._quotas.count_tokens(batch.choices)
        batch.emit(updates.token_ids, updates.logprobs)

    def _begin_batch(self, updates: SequenceUpdates, now: float) -> ChoiceBatch:
        """Count the tokens of choices that have not got their last ones together."""
        choices, numerics_id = [self._choices[sequence] for sequence in updates.sequences], updates.numerics_id
        for choice in choices:
            if choice.numerics_id != numerics_id:
                choice.numerics_id = numerics_id
                choice.owner.outputs.numerics.append((choice.number, numerics_id))
        self._stats.count_tokens(choices, now)
        return ChoiceBatch(updates.sequences, choices, numerics_id)

    def fail_sequences(self, failures: list[FailedSequence]) -> None:
        """End the requests of sequences that cannot go on."""
        for failed in failures:
            sequence = failed.sequence
            if failed.nothing_to_draw:
                where = f"choice {sequence.choice} can draw no token at index {sequence.num_generated_tokens}"
                self.fail_sequence(sequence, Failure.INVALID_ARGUMENT, f"{where}: {failed.message}")
            else:
                self.fail_sequence(sequence, Failure.INTERNAL, f"{failed.message}, request_id {sequence.request_id!r}")

    # Pauses

    def hold(self, front_end: FrontEnd, request_id: str, now: float) -> None:
        """Let a request produce nothing until `unhold`; nothing happens if it is held already."""
        live = self._own(front_end, request_id)
        if live and not live.held:
            live.held = True
            for choice in live.open:
                self._scheduler.hold(choice.sequence, now)

    def unhold(self, front_end: FrontEnd, request_id: str, now: float) -> None:
        """Let a held request go on."""
        live = self._own(front_end, request_id)
        if live and live.held:
            live.held = False
            self._batches.clear()
            for choice in live.open:
                choice.last_token = TokenTime()  # the gap is the reader's
                self._scheduler.unhold(choice.sequence, now)

    def _own(self, front_end: FrontEnd, request_id: str) -> LiveRequest | None:
        """The request, if it is live and the front end's; another one may have taken it over meanwhile."""
        live = self._requests.get(request_id)
        return live if live and live.owner.front_end is front_end else None

    # Ends

    def end(self, front_end: FrontEnd, request_id: str, failure: Failure, message: str) -> None:
        """End a request of a front end without a result."""
        live = self._own(front_end, request_id)
        if live:
            self.fail(live, failure, message)

    def abort(self, request_id: str) -> bool:
        """End a request of whatever front end; returns whether it was live."""
        live = self._requests.get(request_id)
        if live:
            self.fail(live, Failure.CANCELLED, "request aborted")
        return live is not None

    def finish(self, front_end: FrontEnd, number: int, now: float) -> None:
        """End a choice in which its front end has found a stop string."""
        owner = self._front_ends.get(front_end)
        choice = owner.choices.get(number) if owner else None
        if choice:
            self._end(choice, FinishReason.STOP, None, now)

    def drain(self, front_end: FrontEnd) -> None:
        """Refuse what comes from a front end, and end what of it never ran."""
        owner = self._owner(front_end)
        owner.is_draining = True
        for live in list(self._requests.values()):
            if live.owner is owner and live.never_ran and not live.spec.was_accepted:
                self.fail(live, Failure.UNAVAILABLE, _DRAINING)

    def close(self, front_end: FrontEnd) -> None:
        """Forget a front end and its requests, whose ends nobody is told."""
        owner = self._front_ends.pop(front_end, None)
        for live in [live for live in self._requests.values() if live.owner is owner]:
            self.fail(live, Failure.CANCELLED, "front end closed")

    def fail_too_long(self) -> None:
        """End what was taken in before the limit was known and does not fit it."""
        for live in list(self._requests.values()):
            too_long = None if live.spec.was_accepted else self._too_long(live.spec)
            if too_long:
                self.fail(live, *too_long)

    def fail_overdue(self, now: float) -> None:
        """End the requests whose sequences waited for a worker for the whole grace time."""
        for sequence in self._scheduler.overdue(now):
            message = f"{self._scheduler.waiting.why_stranded(sequence)} within {self._scheduler.options.grace_seconds:g} s"
            self.fail_sequence(sequence, Failure.UNAVAILABLE, message)

    def fail_exhausted(self, sequences: list[Sequence], reason: str) -> None:
        """End the requests of sequences that have lost too many workers."""
        limit = self._scheduler.options.max_losses
        for sequence in sequences:
            self._stats.observed.replays_exhausted += 1
            message = f"lost {limit} workers while it ran alone, without progress; the last time: {reason}"
            self.fail_sequence(sequence, Failure.ABORTED, message)

    def fail_sequence(self, sequence: Sequence, failure: Failure, message: str) -> None:
        """End the request of a sequence, if it is still live."""
        choice = self._choices.get(sequence)
        if choice:
            self.fail(choice.request, failure, message)

    def fail(self, live: LiveRequest, failure: Failure, message: str) -> None:
        """End a request without a result."""
        for choice in tuple(live.open):
            self._stats.tracers.choice_ended(choice, failure)
            self._forget(choice)
        del self._requests[live.spec.request_id]
        self._quotas.close(live)
        self._emit_failure(live.owner, RequestFailed(live.spec.request_id, failure, message))

    @property
    def live_choices(self) -> list[LiveChoice]:
        """The choices that have not ended."""
        return list(self._choices.values())

    def abandon(self) -> None:
        """End every request, in whatever state the scheduler is, which is to forget them on its own."""
        for choice in self._choices.values():
            self._stats.tracers.choice_ended(choice, Failure.INTERNAL)
        self._choices.clear()
        for owner in self._front_ends.values():
            owner.choices.clear()
        for request_id, live in list(self._requests.items()):
            del self._requests[request_id]
            self._quotas.close(live)
            self._emit_internal_error(live.owner, request_id)

    def _end(self, choice: LiveChoice, reason: FinishReason, end_token_id: int | None, now: float) -> None:
        live, finished = choice.request, choice.finished(reason, end_token_id, now)
        if _log.isEnabledFor(logging.DEBUG):
            facts = {"choice": choice.sequence.choice, "reason": reason.value, "tokens": finished.num_generated_tokens}
            _log.debug("choice ended", extra={"request_id": live.spec.request_id, **facts, "worker": finished.worker})
        self._stats.tracers.choice_ended(choice, None)
        self._forget(choice)
        live.owner.outputs.finished.append(finished)
        self._stats.count_finished(choice, finished)
        if reason is FinishReason.LENGTH:
            live.reason = FinishReason.LENGTH
        self._close(live)

    def _forget(self, choice: LiveChoice) -> None:
        choice.request.open.remove(choice)
        self._quotas.close_choice(choice)
        del self._choices[choice.sequence], choice.request.owner.choices[choice.number]
        self._scheduler.finish(choice.sequence)

    def _close(self, live: LiveRequest) -> None:
        """Forget a request once every choice has ended."""
        if not live.open:
            del self._requests[live.spec.request_id]
            self._quotas.close(live)
            self._stats.observed.finished.append(live.reason)

    def _emit_usage(self, owner: FrontEndRequests, spec: GenerationRequest) -> None:
        if usage := self._quotas.usage(spec):
            owner.outputs.usage.append((spec.request_id, usage))

    def _emit_internal_error(self, owner: FrontEndRequests, request_id: str) -> None:
        self._emit_failure(owner, RequestFailed(request_id, Failure.INTERNAL, f"internal error, request_id {request_id!r}"))

    def _emit_failure(self, owner: FrontEndRequests, failed: RequestFailed) -> None:
        self._stats.observed.failed.append(failed.failure)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("request ended without a result", extra={"request_id": failed.request_id, "failure": failed.failure.value})
        owner.outputs.failed.append(failed)

    def _emit_prompt_logprobs(self, sequence: Sequence) -> None:
        outputs = self._choices[sequence].request.owner.outputs
        outputs.prompt_logprobs.append(PromptLogprobs(sequence.request_id, tuple(sequence.prompt_logprobs)))


def _has_key(spec: GenerationRequest, live: LiveRequest) -> bool:
    """Whether a request is a resume of a live one."""
    return spec.takes_over and hmac.compare_digest(live.spec.resume_key, spec.resume_key)
