"""From a client's GenerationSpec to a request that the engine can take."""

import itertools
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from control_plane.core.constraint import Constraint
from control_plane.edge.access.callers import CALLER, DEFAULT_PRIORITIES, PriorityRange
from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.constraints import RequestConstraints, check_constraint
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.parameters import (
    check_num_tokens,
    check_parameters,
    check_token_ids,
    choice_seed,
    effective_parameters,
    sampling_params,
)
from control_plane.edge.service.admission.prompt import PromptEncoder, context_prompt_limit
from control_plane.edge.service.admission.replay import Replay, ResumedChoice
from control_plane.edge.service.admission.resume import Replayer, check_num_resumed_tokens, check_resume, unfinished_choices
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.edge.service.errors import InvalidArgument, NotFound, Unavailable
from control_plane.edge.text.constraint.compiler import ConstraintCompiler
from control_plane.edge.text.text_stream import SequenceTextStream, StopStrings, TextRules
from control_plane.engine.ports import ChoiceSpec, GenerationRequest, SequenceFinished
from pypto_serving.inference.v1 import inference_pb2

_REQUEST_ID = re.compile(r"[ -~]{1,256}")
_MAX_SALT_BYTES = 256
_MAX_NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A validated request, and how it was understood."""

    started: inference_pb2.Started
    request: GenerationRequest
    choices: Sequence[ChoiceOutput]  # those of the request, and those that a resume turned out to contain to their end


class Admission:
    """Validates requests and applies all defaults. Used on the clients' event loop; every method raises a RequestError."""

    def __init__(
        self,
        model: ServedModel,
        encoder: PromptEncoder,
        compiler: ConstraintCompiler,
        replayer: Replayer,
        context_limit: ContextLimit,
        priorities: PriorityRange = DEFAULT_PRIORITIES,
    ) -> None:
        """`priorities`: of callers whose key says nothing else."""
        self._model = model
        self._priorities = priorities
        self._encoder = encoder
        self._replayer = replayer
        self._context_limit = context_limit
        self._constraints = RequestConstraints(compiler)
        self._numbers = itertools.count()

    async def admit(self, spec: inference_pb2.GenerationSpec, request_id: str, traceparent: str = "") -> AdmittedRequest:
        """Understand a request; `request_id` is the spec's, or one for a spec without. It waits while no worker has ever said how long a
        request may be."""
        arrival_time = time.monotonic()
        self.check_model(spec.model)
        _check_sizes(spec)
        caller = CALLER.get()
        allowed = caller.priorities or self._priorities
        if spec.priority not in allowed:
            raise InvalidArgument(f"priority = {spec.priority}, must be in {allowed}: that is what this server allows the caller")
        effective, prompt = await self._understood(spec)
        path = "resume.effective.stopping" if spec.HasField("resume") else "stopping"
        if spec.HasField("constraint") and effective.stopping.ignore_eos:
            raise InvalidArgument(f"{path}.ignore_eos is set beside constraint, whose output ends with an end token")
        _set_max_tokens(effective.stopping, len(prompt), await self._context_limit.get(), path)
        started = inference_pb2.Started(
            request_id=request_id,
            model=self._model.name,
            model_fingerprint=self._model.fingerprint,
            effective=effective,
            resume_key=spec.resume.key or secrets.token_bytes(16),
            num_prompt_tokens=len(prompt),
            prompt_token_ids=prompt if effective.output.prompt_token_ids else (),
        )
        stop_token_ids = self._stop_token_ids(effective)
        grammar, choices = await self._choices(spec, effective, prompt, stop_token_ids)
        specs: list[ChoiceSpec] = []  # known when the replay shows which choices go on
        request = GenerationRequest(
            request_id=caller.scoped(started.request_id),
            resume_key=started.resume_key,
            prompt_token_ids=prompt,
            choices=specs,
            max_tokens=effective.stopping.max_tokens,
            min_tokens=effective.stopping.min_tokens,
            end_token_ids=self._end_token_ids(effective.stopping) | stop_token_ids,
            arrival_time=arrival_time,
            priority=spec.priority,
            cache_salt=caller.scoped(spec.cache_salt),
            grammar=grammar,
            takes_over=spec.HasField("resume"),
            traceparent=traceparent,
            tenant=caller.tenant,
        )
        if request.takes_over:
            await self._replayer.run(Replay(request, choices))
        specs += self._specs(request, effective, choices)
        return AdmittedRequest(started, request, [choice.output for choice in choices])

    async def _understood(self, spec: inference_pb2.GenerationSpec) -> tuple[inference_pb2.EffectiveParameters, list[int]]:
        """The parameters in force, all but max_tokens, and the prompt."""
        if not spec.HasField("resume"):
            effective = effective_parameters(spec, self._model.default_sampling)
            check_parameters(effective, self._model.vocab_size)
            return effective, await self._prompt(spec)
        num_tokens = check_num_resumed_tokens(spec.resume)
        model = self._model
        await self._encoder.run(num_tokens, check_resume, spec, model.fingerprint, model.vocab_size, model.max_positions)
        await self._check_resumed_length(spec.resume)
        prompt = list(spec.resume.prompt_token_ids)
        self._check_prompt(prompt, "resume.prompt_token_ids")
        return spec.resume.effective, prompt

    async def prepare(self) -> None:
        """Build what all constraints share, so that the first constrained request is as fast as the others."""
        await self._encoder.compile(self._constraints.prepare)

    def check_model(self, name: str) -> None:
        """Require the served model; an empty name means it."""
        if name not in ("", self._model.name):
            raise NotFound(f"model {name!r} is not served; this server has {self._model.name!r}")

    async def _check_resumed_length(self, resume: inference_pb2.Resume) -> None:
        """Raise Unavailable where only smaller workers are left: the request did fit once, so this is no fault of the client."""
        num_prompt_tokens, max_tokens = len(resume.prompt_token_ids), resume.effective.stopping.max_tokens
        limit = await self._context_limit.get()
        if limit < num_prompt_tokens + max_tokens <= self._model.max_positions:
            lengths = f"the prompt has {num_prompt_tokens} tokens, max_tokens is {max_tokens}, and a request may have {limit} now"
            raise Unavailable(f"resume: {lengths}; try again when a larger worker is there")

    @property
    def _max_tokens(self) -> int:
        """How many tokens a request may have; until the first worker has said it, as many as the model allows."""
        return self._context_limit.tokens or self._model.max_positions

    async def _prompt(self, spec: inference_pb2.GenerationSpec) -> list[int]:
        limit = context_prompt_limit(self._max_tokens, self._model.tokenizer.max_token_characters)
        match spec.WhichOneof("prompt"):
            case "text":
                prompt = (await self._encoder.text(spec.text, limit)).token_ids
                field = "text"
            case "chat":
                prompt = (await self._encoder.chat(spec.chat, "chat", limit)).token_ids
                field = "chat"
            case "token_ids":
                check_num_tokens("token_ids", len(spec.token_ids.ids), self._max_tokens)
                prompt = list(spec.token_ids.ids)
                field = "token_ids"
            case _:
                raise InvalidArgument("prompt is absent, must be one of text, token_ids and chat")
        self._check_prompt(prompt, field)
        return prompt

    def _check_prompt(self, prompt: Sequence[int], field: str) -> None:
        if not prompt:
            raise InvalidArgument(f"{field} has 0 tokens, must have at least 1")
        check_token_ids(prompt, self._model.vocab_size, field)

    async def _choices(
        self,
        spec: inference_pb2.GenerationSpec,
        effective: inference_pb2.EffectiveParameters,
        prompt: Sequence[int],
        stop_token_ids: frozenset[int],
    ) -> tuple[str, list[ResumedChoice]]:
        """The grammar of all choices, and those that a resume has not seen to their end."""
        unfinished = unfinished_choices(spec, effective.n)
        grammar = ""
        constraints: Sequence[Constraint | None] = [None] * len(unfinished)
        if spec.HasField("constraint"):
            grammar, constraints = await self._encoder.compile(self._constraints.compile, spec.constraint, len(unfinished))
        rules, choices = self._text_rules(effective, stop_token_ids), []
        for choice, constraint in zip(unfinished, constraints, strict=True):
            detokenizer = self._model.tokenizer.detokenizer(prompt, effective.output.skip_special_tokens)
            output = ChoiceOutput(choice.index, next(self._numbers) % _MAX_NUMBERS, SequenceTextStream(detokenizer, rules))
            choices.append(ResumedChoice(output, choice.token_ids, choice.numerics_id, constraint))
        return grammar, choices

    def _specs(
        self, request: GenerationRequest, effective: inference_pb2.EffectiveParameters, choices: Sequence[ResumedChoice]
    ) -> Iterator[ChoiceSpec]:
        """The choices that go on; the others are finished. Prompt logprobs are asked of the first of them."""
        sampling = sampling_params(effective, self._model.vocab_size)
        for choice in choices:
            index, number = choice.output.index, choice.output.number
            if choice.ending:
                choice.output.finish(_resumed_end(request, choice))
                continue
            seeded = replace(sampling, seed=choice_seed(sampling.seed, index)) if index else sampling
            yield ChoiceSpec(index, number, seeded, choice.token_ids, choice.numerics_id)
            sampling = sampling if sampling.prompt_logprobs is None else replace(sampling, prompt_logprobs=None)

    def _end_token_ids(self, stopping: inference_pb2.StoppingParams) -> frozenset[int]:
        return frozenset() if stopping.ignore_eos else self._model.end_token_ids

    def _stop_token_ids(self, effective: inference_pb2.EffectiveParameters) -> frozenset[int]:
        """A stop string that is a special token stops at that: the text, in which it would be looked for, does not show it."""
        spelled = []
        for index, stop in enumerate(effective.stopping.stop if effective.output.skip_special_tokens else ()):
            found = self._model.tokenizer.special_tokens_in(stop)
            if stop in found:
                spelled.append(found[stop])
            elif found:
                raise InvalidArgument(
                    f"stopping.stop[{index}] contains the special token {min(found)!r}, which the text does not show: stop at it alone,"
                    f" by stop or stop_token_ids, or set output.skip_special_tokens to false"
                )
        return frozenset([*effective.stopping.stop_token_ids, *spelled])

    def _text_rules(self, effective: inference_pb2.EffectiveParameters, stop_token_ids: frozenset[int]) -> TextRules:
        """The text of end tokens is a special token's, that of stop tokens follows include_stop."""
        stopping = effective.stopping
        end_texts = dict.fromkeys(self._end_token_ids(stopping), "") if effective.output.skip_special_tokens else {}
        for token_id in stop_token_ids:
            end_texts[token_id] = self._model.tokenizer.decode([token_id], skip_special_tokens=False) if stopping.include_stop else ""
        return TextRules(
            stops=StopStrings(stopping.stop) if stopping.stop else None,
            include_stop=stopping.include_stop,
            min_tokens=stopping.min_tokens,
            end_texts=end_texts,
        )


def _resumed_end(request: GenerationRequest, choice: ResumedChoice) -> SequenceFinished:
    """The end of a choice that was generated before, all of it."""
    assert choice.ending
    seconds = time.monotonic() - request.arrival_time
    return SequenceFinished(
        number=choice.output.number,
        reason=choice.ending.reason,
        end_token_id=choice.ending.end_token_id,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generated_tokens=choice.output.first_index,
        num_cached_tokens=0,
        num_readmissions=0,
        queue_seconds=seconds,
        first_token_seconds=0.0,
        total_seconds=seconds,
    )


def _check_sizes(spec: inference_pb2.GenerationSpec) -> None:
    """Check what neither prompt nor parameters are, before anything looks inside."""
    if spec.request_id and not _REQUEST_ID.fullmatch(spec.request_id):
        raise InvalidArgument(f"request_id {spec.request_id[:300]!r} must be at most 256 characters of printable ASCII")
    salt_bytes = len(spec.cache_salt.encode())
    if salt_bytes > _MAX_SALT_BYTES:
        raise InvalidArgument(f"cache_salt has {salt_bytes} bytes, may have at most {_MAX_SALT_BYTES}")
    if spec.HasField("constraint"):
        check_constraint(spec.constraint)


def _set_max_tokens(stopping: inference_pb2.StoppingParams, num_prompt_tokens: int, max_model_len: int, path: str) -> None:
    """Check lengths, and fill max_tokens in when it is absent."""
    room = max_model_len - num_prompt_tokens
    wanted = stopping.max_tokens if stopping.HasField("max_tokens") else 1
    lengths = f"the prompt has {num_prompt_tokens} tokens, and a request may have {max_model_len}"
    if room < min(wanted, 1):
        raise InvalidArgument(f"{lengths}: no room for output")
    if wanted > room:
        raise InvalidArgument(f"{path}.max_tokens = {wanted}, must be at most {room}: {lengths}")
    if not stopping.HasField("max_tokens"):
        stopping.max_tokens = room
    if stopping.min_tokens > stopping.max_tokens:
        raise InvalidArgument(f"{path}.min_tokens = {stopping.min_tokens}, must be at most max_tokens = {stopping.max_tokens}")
