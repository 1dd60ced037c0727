"""Commands for the scheduler."""

from control_plane.edge.scheduler_link.live_requests import LiveChoice, LiveRequest
from control_plane.edge.worker_link.frames.requests import encode_sampling
from control_plane.engine.ports import Failure, Tenant
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.columns import pack_ids

DRAIN = pb.Command(drain=pb.Drain())


def submission(live: LiveRequest, now: float) -> pb.Command:
    """Encode what is left of a request: all of it the first time, later what its choices have generated in its stead."""
    request = live.request
    return pb.Command(
        submit=pb.Submission(
            request_id=request.request_id,
            resume_key=request.resume_key,
            prompt_token_ids=pack_ids(request.prompt_token_ids),
            choices=[_choice(choice, live.has_prompt_logprobs) for choice in live.choices.values()],
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            end_token_ids=pack_ids(sorted(request.end_token_ids)),
            age_us=max(0, round((now - request.arrival_time) * 1e6)),
            priority=request.priority,
            cache_salt=request.cache_salt,
            grammar=request.grammar,
            takes_over=request.takes_over or live.was_accepted,
            was_accepted=request.was_accepted or live.was_accepted,
            traceparent=request.traceparent,
            tenant=_tenant(request.tenant) if request.tenant else None,
        )
    )


def end(request_id: str, failure: Failure, message: str) -> pb.Command:
    """Encode the end of a request."""
    return pb.Command(end=pb.End(request_id=request_id, failure=pb.Failure.Value(f"FAILURE_{failure.name}"), message=message))


def _tenant(tenant: Tenant) -> pb.Tenant:
    quota = tenant.quota
    return pb.Tenant(name=tenant.name, is_named=tenant.is_named, tokens_per_minute=quota.tokens_per_minute, max_requests=quota.max_requests)


def _choice(choice: LiveChoice, has_prompt_logprobs: bool) -> pb.Choice:
    sampling = encode_sampling(choice.spec.sampling)
    if has_prompt_logprobs:
        sampling.ClearField("prompt_logprobs")
    return pb.Choice(
        index=choice.spec.index,
        number=choice.spec.number,
        sampling=sampling,
        resumed_token_ids=pack_ids(choice.token_ids),
        resumed_numerics_id=choice.numerics_id if choice.token_ids else None,
    )
