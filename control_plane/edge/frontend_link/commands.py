"""Commands of front ends, checked before any of them has an effect."""

from collections.abc import Container
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from control_plane.core.sampling import SamplingParams
from control_plane.edge.session_contract import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION, common_version
from control_plane.engine.ports import ChoiceSpec, Failure, GenerationRequest, Quota, Tenant
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError, check_name, check_range
from pypto_serving.wire.columns import unpack_column
from pypto_serving.wire.contract import MAX_FEATURES
from pypto_serving.wire.sampling import check_sampling
from pypto_serving.wire.traceparent import clean_traceparent
from pypto_serving.worker.v1 import worker_pb2

_MAX_ID_LENGTH = 1024
_MAX_CHOICES = 1024
_MAX_UINT32 = 2**32 - 1
_MAX_UINT64 = 2**64 - 1

#: Sampling parameters, but those that cross the wire in another form.
_SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name not in ("logit_bias", "prompt_logprobs"))


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What commands are held against: the model, and what is live in the session."""

    vocab_size: int
    request_ids: Container[str]
    numbers: Container[int]


def check_hello(hello: pb.Hello) -> int:
    """The version to speak, or 0; raises FrameError when a name is missing or too long."""
    check_name("hello.front_end_id", hello.front_end_id)
    check_name("hello.model_fingerprint", hello.model_fingerprint)
    if hello.model_name:
        check_name("hello.model_name", hello.model_name)
    check_range("hello.protocol_version", hello.protocol_version, 1, _MAX_UINT32)
    check_range("hello.features (number)", len(hello.features), 0, MAX_FEATURES)
    return common_version(hello.min_protocol_version, hello.protocol_version)


def versions() -> str:
    """What this build speaks, for a message."""
    return f"this scheduler speaks {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"


def read_submissions(commands: pb.Commands, limits: SessionLimits, now: float) -> list[GenerationRequest]:
    """Check a frame as a whole, and read its submissions in order; raises FrameError. `now` is the engine's time."""
    requests: list[GenerationRequest] = []
    new_ids: set[str] = set()
    new_numbers: set[int] = set()
    for command in commands.commands:
        if command.HasField("end"):
            failure_of(command.end)
        elif command.HasField("submit"):
            request = _request(command.submit, limits, now)
            _check_fresh("submit.request_id", request.request_id, limits.request_ids, new_ids)
            for choice in request.choices:
                _check_fresh("submit.choices.number", choice.number, limits.numbers, new_numbers)
            requests.append(request)
    return requests


def failure_of(end: pb.End) -> Failure:
    """Why a request is to end; raises FrameError."""
    if not end.failure or end.failure not in pb.Failure.values():
        raise FrameError(f"end.failure: {end.failure} says nothing")
    return Failure[pb.Failure.Name(end.failure).removeprefix("FAILURE_")]


def _check_fresh(field: str, name: Any, live: Container[Any], new: set[Any]) -> None:
    if name in live or name in new:
        raise FrameError(f"{field}: {name!r} is live in this session")
    new.add(name)


def _request(submit: pb.Submission, limits: SessionLimits, now: float) -> GenerationRequest:
    check_range("submit.request_id (length)", len(submit.request_id), 1, _MAX_ID_LENGTH)
    check_range("submit.resume_key (length)", len(submit.resume_key), 0, _MAX_ID_LENGTH)
    check_range("submit.choices (number)", len(submit.choices), 0, _MAX_CHOICES)
    check_range("submit.max_tokens", submit.max_tokens, 0, _MAX_UINT32)
    prompt = unpack_column(submit.prompt_token_ids, "submit.prompt_token_ids", limits.vocab_size)
    check_range("submit.prompt_token_ids (length)", len(prompt), 1, _MAX_UINT32)
    indices = [choice.index for choice in submit.choices]
    if any(later <= earlier for earlier, later in pairwise(indices)):
        raise FrameError(f"submit.choices.index: {indices} do not rise")
    end_token_ids = unpack_column(submit.end_token_ids, "submit.end_token_ids", limits.vocab_size)
    return GenerationRequest(
        request_id=submit.request_id,
        resume_key=submit.resume_key,
        prompt_token_ids=prompt,
        choices=[_choice(choice, submit.max_tokens, limits.vocab_size) for choice in submit.choices],
        max_tokens=submit.max_tokens,
        min_tokens=submit.min_tokens,
        end_token_ids=frozenset(end_token_ids),
        arrival_time=now - submit.age_us / 1e6,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        grammar=submit.grammar,
        takes_over=submit.takes_over,
        was_accepted=submit.was_accepted,
        traceparent=clean_traceparent(submit.traceparent),
        tenant=_tenant(submit.tenant) if submit.HasField("tenant") else None,
    )


def _tenant(tenant: pb.Tenant) -> Tenant:
    check_name("submit.tenant.name", tenant.name)
    limits = {name: getattr(tenant, name) for name in ("tokens_per_minute", "max_requests") if tenant.HasField(name)}
    for name, limit in limits.items():
        check_range(f"submit.tenant.{name}", limit, 1, _MAX_UINT64)
    return Tenant(tenant.name, Quota(**limits), tenant.is_named)


def _choice(choice: pb.Choice, max_tokens: int, vocab_size: int) -> ChoiceSpec:
    field = "submit.choices"
    if not choice.HasField("sampling"):
        raise FrameError(f"{field}.sampling: missing; every choice says how its tokens are drawn")
    resumed = unpack_column(choice.resumed_token_ids, f"{field}.resumed_token_ids", vocab_size)
    check_range(f"{field}.resumed_token_ids (length)", len(resumed), 0, max(0, max_tokens - 1))
    if choice.HasField("resumed_numerics_id"):
        check_name(f"{field}.resumed_numerics_id", choice.resumed_numerics_id)
    return ChoiceSpec(
        index=choice.index,
        number=choice.number,
        sampling=_sampling(choice.sampling, vocab_size),
        resumed_token_ids=resumed,
        resumed_numerics_id=choice.resumed_numerics_id if choice.HasField("resumed_numerics_id") else None,
    )


def _sampling(sampling: worker_pb2.LaneSampling, vocab_size: int) -> SamplingParams:
    """Read sampling parameters. Workers check them again, but a step that they refuse costs all of its sequences."""
    token_ids, values = check_sampling("submit.choices.sampling", sampling, vocab_size)
    same: dict[str, Any] = {name: getattr(sampling, name) for name in _SAMPLING}
    return SamplingParams(
        **same,
        logit_bias=tuple(zip(token_ids.tolist(), values.tolist(), strict=True)),
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
    )
