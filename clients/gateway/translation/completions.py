"""Completions: one request for each prompt."""

from clients.gateway.errors import ApiError
from clients.gateway.schemas.completions import CompletionRequest
from clients.gateway.translation.common import generation_fields, structured_fields
from clients.request import Request

#: Of one body; each is a request of its own.
MAX_PROMPTS = 256


def completion_requests(body: CompletionRequest, request_id: str) -> list[Request]:
    """A request for each prompt; raises ApiError."""
    prompts = body.prompts
    if len(prompts) > MAX_PROMPTS:
        raise ApiError(400, f"prompt: there are {len(prompts)}, must be at most {MAX_PROMPTS}", param="prompt")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(400, f"best_of = {body.best_of}, must equal n = {body.n or 1}: answers are not ranked", param="best_of")
    fields = generation_fields(body) | structured_fields(body) | {"model": body.model, "max_tokens": body.max_tokens}
    if body.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": body.logprobs}
        fields["prompt_logprobs"] = body.logprobs if body.echo else None
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    return [
        Request(**({"prompt": prompt} if isinstance(prompt, str) else {"token_ids": prompt}), request_id=prompt_id, **fields)
        for prompt, prompt_id in zip(prompts, ids, strict=True)
    ]
