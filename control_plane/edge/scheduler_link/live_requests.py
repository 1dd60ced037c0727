"""The requests that a front end has with the scheduler: what it takes to submit each of them once more."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from control_plane.core.step import ids
from control_plane.edge.scheduler_link.stream import LossCause
from control_plane.engine.ports import ChoiceSpec, Failure, FinishReason, GenerationRequest, Outputs, RequestFailed, SequenceFinished
from pypto_serving.wire.checks import FrameError


@dataclass(slots=True, eq=False)
class LiveChoice:
    """A choice that has not ended."""

    owner: "LiveRequest"
    spec: ChoiceSpec
    token_ids: "array[int]"  # generated so far, resumed ones included
    numerics_id: str | None
    is_finishing: bool = False  # the scheduler was told to end it
    first_token_seconds: float = 0.0  # since arrival, of new tokens; 0: there is none
    num_resubmissions: int = 0

    @property
    def ending(self) -> tuple[FinishReason, int | None] | None:
        """The reason, and the end token, with which it has ended or was to end, though the scheduler cannot say so any more."""
        request = self.owner.request
        last = self.token_ids[-1] if self.token_ids else None
        if last in request.end_token_ids and len(self.token_ids) > request.min_tokens:
            return FinishReason.STOP, last
        if self.is_finishing:
            return FinishReason.STOP, None
        # With max_tokens 0 the end comes when the prompt is computed, which only the scheduler knows.
        return (FinishReason.LENGTH, None) if len(self.token_ids) >= request.max_tokens > 0 else None

    def finished(self, reason: FinishReason, end_token_id: int | None, now: float) -> SequenceFinished:
        """Its end, when the scheduler cannot tell it: what only the scheduler knows is 0."""
        request = self.owner.request
        return SequenceFinished(
            number=self.spec.number,
            reason=reason,
            end_token_id=end_token_id,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_generated_tokens=len(self.token_ids),
            num_cached_tokens=0,
            num_readmissions=self.num_resubmissions,
            queue_seconds=0.0,
            first_token_seconds=self.first_token_seconds,
            total_seconds=now - request.arrival_time,
        )

    def adjusted(self, finished: SequenceFinished) -> SequenceFinished:
        """Its end over all schedulers that it had, from what the last one says."""
        if not self.num_resubmissions:
            return finished
        first_token_seconds = self.first_token_seconds or finished.first_token_seconds
        return replace(
            finished,
            num_readmissions=finished.num_readmissions + self.num_resubmissions,
            queue_seconds=min(finished.queue_seconds, first_token_seconds),
            first_token_seconds=first_token_seconds,
        )


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that has not ended. Of its choices it keeps those that have not."""

    request: GenerationRequest
    waiting_since: float  # for a scheduler, unless it is sent
    choices: dict[int, LiveChoice] = field(default_factory=dict)  # by number
    is_sent: bool = False  # in this session
    is_accepted: bool = False  # in this session
    was_accepted: bool = False  # in this session or an earlier one
    has_started: bool = False  # in this session: a sequence of it has run
    is_suspect: bool = False  # it may be why the last session was lost
    has_prompt_logprobs: bool = False
    is_held: bool = False
    end: tuple[Failure, str] | None = None  # which the scheduler was told to bring
    num_losses: int = 0  # schedulers lost while it ran, one after the other, without progress in between
    progress: tuple[int, int] = (0, 0)  # when it was sent: choices that had not ended, and their tokens

    def measure(self) -> tuple[int, int]:
        """How far it is now: with any progress another value than before."""
        return len(self.choices), sum(len(choice.token_ids) for choice in self.choices.values())


class LiveRequests:
    """What is live, and what of it the scheduler in session does not have yet. Tokens cost one lookup and one append each."""

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self._requests: dict[str, LiveRequest] = {}
        self._choices: dict[int, LiveChoice] = {}
        self._appends: dict[int, Callable[[int], None]] = {}  # by number: takes the next token of a choice that is running
        self._unsent: OrderedDict[str, LiveRequest] = OrderedDict()  # in the order of submission
        self._ended = Outputs()  # ends that no scheduler told
        self._scheduler_id = ""  # of the latest session

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def pop_ended(self) -> Outputs:
        """Ends since the last call that no scheduler told."""
        ended, self._ended = self._ended, Outputs()
        return ended

    # What calls want. Each returns whether the scheduler is to be told.

    def add(self, request: GenerationRequest, now: float) -> None:
        """Take a request in; it waits to be sent."""
        assert request.request_id not in self._requests, f"request {request.request_id!r} is live"
        live = self._requests[request.request_id] = self._unsent[request.request_id] = LiveRequest(request, now)
        for spec in request.choices:
            assert spec.number not in self._choices, f"number {spec.number} is live"
            choice = LiveChoice(live, spec, ids(spec.resumed_token_ids), spec.resumed_numerics_id)
            live.choices[spec.number] = self._choices[spec.number] = choice

    def finish(self, number: int, now: float) -> bool:
        """End a choice with STOP."""
        choice = self._choices.get(number)
        if choice is None or choice.is_finishing:
            return False
        choice.is_finishing = True
        if not choice.owner.is_sent:
            self._end_by_itself(choice, now)
        return choice.owner.is_sent

    def hold(self, request_id: str, is_held: bool) -> bool:
        """Let a request pause, or go on."""
        live = self._requests.get(request_id)
        if live is None or live.is_held == is_held:
            return False
        live.is_held = is_held
        return live.is_sent

    def end(self, request_id: str, failure: Failure, message: str) -> bool:
        """End a request."""
        live = self._requests.get(request_id)
        if live is None or live.end:
            return False
        live.end = (failure, message)
        if not live.is_sent:
            self._fail(live, failure, message)
        return live.is_sent

    # Sessions

    def pop_unsent(self) -> LiveRequest | None:
        """The next request that the scheduler in session does not have; it is as good as sent."""
        if not self._unsent:
            return None
        _, live = self._unsent.popitem(last=False)
        live.is_sent = True
        live.progress = live.measure()
        return live

    def begin_session(self, scheduler_id: str) -> None:
        """A scheduler welcomes us. If it is another one than before, that one has died, hung or lost its lease, perhaps by what it ran."""
        is_another, self._scheduler_id = scheduler_id != self._scheduler_id, scheduler_id
        for live in list(self._requests.values()):
            if live.is_suspect and is_another:
                self._count_loss(live)
            live.is_suspect = False

    def lose_session(self, cause: LossCause, now: float, waiting_since: float) -> None:
        """All that is live has to be sent once more, but what was to end does so now."""
        self._appends.clear()
        for live in list(self._requests.values()):
            if not live.is_sent:
                continue
            live.is_suspect = cause is not LossCause.FAREWELL and self._may_be_why(live)
            live.is_sent = live.is_accepted = live.has_started = False
            live.waiting_since = waiting_since
            if live.end:
                self._fail(live, *live.end)
            elif not (live.is_suspect and cause is LossCause.CONTENT and self._count_loss(live)):
                self._settle(live, now)
        self._unsent = OrderedDict(self._requests)

    def fail_overdue(self, now: float, grace_seconds: float, reason: str) -> None:
        """End what has waited for a scheduler for too long."""
        for live in list(self._unsent.values()):
            if now - live.waiting_since >= grace_seconds:
                self._fail(live, Failure.UNAVAILABLE, f"no scheduler within {grace_seconds:g} s: {reason}")

    def _may_be_why(self, live: LiveRequest) -> bool:
        """Whether a session may have been lost by a request: it ran, or was being taken in, and made no progress. Waiting harms nobody."""
        if live.is_held or live.progress != live.measure():
            live.num_losses = 0
            return False
        return live.has_started or not live.is_accepted

    def _count_loss(self, live: LiveRequest) -> bool:
        """Count a loss by a suspect; returns whether that was the last one, which ends it: no other scheduler is to be risked for it."""
        live.num_losses += 1
        live.is_suspect = False
        if live.num_losses < self._max_losses:
            return False
        lost = f"{live.num_losses} schedulers in a row were lost with it, and it made no progress, limit {self._max_losses}"
        self._fail(live, Failure.ABORTED, lost)
        return True

    def _settle(self, live: LiveRequest, now: float) -> None:
        """End those choices that have ended without a word, or were to; the others go on in the next session."""
        for choice in list(live.choices.values()):
            choice.num_resubmissions += 1
            if choice.ending:
                self._end_by_itself(choice, now)

    # What the scheduler brings

    def prompt_of(self, request_id: str) -> Sequence[int]:
        """The prompt of a live request; raises FrameError."""
        return self._sent("prompt_logprobs.request_id", request_id).request.prompt_token_ids

    def take_in(self, outputs: Outputs, now: float) -> Outputs:
        """Apply what a pass brought; returns what of it is new to the calls. Raises FrameError, without any effect, where it cannot be."""
        appends = self._check(outputs)
        accepted = [request_id for request_id in outputs.accepted if self._accept(self._requests[request_id])]
        prompt_logprobs = [prompt for prompt in outputs.prompt_logprobs if self._note_prompt_logprobs(prompt.request_id)]
        numerics = [(number, numerics_id) for number, numerics_id in outputs.numerics if self._note_numerics(number, numerics_id, now)]
        for request_id in outputs.started:
            self._requests[request_id].has_started = True
        for append, token_id in zip(appends, outputs.token_ids, strict=True):
            append(token_id)
        finished = [self._forget_choice(self._choices[one.number]).adjusted(one) for one in outputs.finished]
        for failed in outputs.failed:
            self._forget(self._requests[failed.request_id])
        return replace(outputs, accepted=accepted, prompt_logprobs=prompt_logprobs, numerics=numerics, finished=finished)

    def _check(self, outputs: Outputs) -> list[Callable[[int], None]]:
        """Require everything that a pass names to be live, and each end to be the first; returns what takes each of its tokens."""
        accepted = {request_id: self._sent("accepted", request_id) for request_id in outputs.accepted}
        for request_id in outputs.started:
            if not (self._sent("started", request_id).is_accepted or request_id in accepted):
                raise FrameError(f"started: {request_id!r} was not accepted")
        failed = {one.request_id: self._sent("failed.request_id", one.request_id) for one in outputs.failed}
        finished = {one.number for one in outputs.finished}
        if (len(accepted), len(failed), len(finished)) != (len(outputs.accepted), len(outputs.failed), len(outputs.finished)):
            raise FrameError("accepted, failed, finished: something is named twice")
        for number in (*(number for number, _ in outputs.numerics), *finished):
            self._running(number, accepted)
        for request_id, live in failed.items():
            if finished.issuperset(live.choices) and (live.choices or request_id in accepted):
                raise FrameError(f"failed.request_id: {request_id!r} has ended in the same pass")
        try:
            return list(map(self._appends.__getitem__, outputs.numbers))
        except KeyError:
            return [self._running(number, accepted).token_ids.append for number in outputs.numbers]

    def _sent(self, field: str, request_id: str) -> LiveRequest:
        live = self._requests.get(request_id)
        if live is None or not live.is_sent:
            raise FrameError(f"{field}: {request_id!r} is not live")
        return live

    def _running(self, number: int, accepted: Container[str]) -> LiveChoice:
        """A choice of a request that was accepted before, or is so in this pass."""
        choice = self._choices.get(number)
        if choice is None or not (choice.owner.is_accepted or choice.owner.request.request_id in accepted):
            raise FrameError(f"number: choice {number} is not live")
        return choice

    def _accept(self, live: LiveRequest) -> bool:
        """Note that a request was accepted; returns whether that is new. One without choices has ended with it."""
        is_new, live.was_accepted, live.is_accepted = not live.was_accepted, True, True
        self._appends.update((number, choice.token_ids.append) for number, choice in live.choices.items())
        if not live.choices:
            self._forget(live)
        return is_new

    def _note_prompt_logprobs(self, request_id: str) -> bool:
        """Note that log probabilities of a prompt have come; returns whether that is new. A request without choices has none."""
        live = self._requests.get(request_id)
        if live is None or live.has_prompt_logprobs:
            return False
        live.has_prompt_logprobs = True
        return True

    def _note_numerics(self, number: int, numerics_id: str, now: float) -> bool:
        """Note the numerics id of a choice, and that its tokens begin; returns whether it is another one."""
        choice = self._choices[number]
        choice.first_token_seconds = choice.first_token_seconds or now - choice.owner.request.arrival_time
        is_new, choice.numerics_id = choice.numerics_id != numerics_id, numerics_id
        return is_new

    # Ends

    def _end_by_itself(self, choice: LiveChoice, now: float) -> None:
        assert choice.ending is not None, f"choice {choice.spec.number} goes on"
        self._ended.finished.append(self._forget_choice(choice).finished(*choice.ending, now))

    def _fail(self, live: LiveRequest, failure: Failure, message: str) -> None:
        self._ended.failed.append(RequestFailed(live.request.request_id, failure, message))
        self._forget(live)

    def _forget_choice(self, choice: LiveChoice) -> LiveChoice:
        """Forget a choice that has ended, and its request with the last one."""
        live = choice.owner
        del live.choices[choice.spec.number], self._choices[choice.spec.number]
        self._appends.pop(choice.spec.number, None)
        if not live.choices:
            self._forget(live)
        return choice

    def _forget(self, live: LiveRequest) -> None:
        del self._requests[live.request.request_id]
        self._unsent.pop(live.request.request_id, None)
        for number in live.choices:
            del self._choices[number]
            self._appends.pop(number, None)
