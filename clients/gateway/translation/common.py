"""Fields that mean the same everywhere."""

import json
from collections.abc import Sequence
from typing import Any

from clients.gateway.errors import ApiError
from clients.gateway.schemas.common import Generation, Sampling

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)
_CONSTRAINTS = {"json_": "json_schema", "regex": "regex", "choice": "alternatives", "grammar": "grammar"}


def sampling_fields(body: Sampling) -> dict[str, Any]:
    """Fields of clients.Request that a body sets."""
    fields = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    if fields.get("top_k") == -1:  # as others write it
        fields["top_k"] = 0
    return fields | {
        "stop_token_ids": body.stop_token_ids or (),
        "include_stop": body.include_stop_str_in_output,
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt or "",
    }


def generation_fields(body: Generation) -> dict[str, Any]:
    """Those of chats and completions."""
    fields = sampling_fields(body)
    fields["n"] = body.n
    fields["stop"] = body.stop or ()
    fields["logit_bias"] = {_token_id(key): bias for key, bias in (body.logit_bias or {}).items()}
    return fields


def structured_fields(body: Sampling) -> dict[str, Any]:
    """The constraint that a body sets in the server's own terms."""
    outputs = body.structured_outputs
    given = {name: getattr(outputs, name) for name in _CONSTRAINTS if outputs and getattr(outputs, name) is not None}
    if outputs and len(given) != 1:
        names = [name.rstrip("_") for name in _CONSTRAINTS]
        raise ApiError(400, f"structured_outputs: give exactly one of {', '.join(names)}", param="structured_outputs")
    fields = {_CONSTRAINTS[name]: value for name, value in given.items()}
    if isinstance(fields.get("json_schema"), dict):
        fields["json_schema"] = json.dumps(fields["json_schema"])
    return fields


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise ApiError(400, f"logit_bias: {key!r} is not a token id", param="logit_bias")
    return int(key)


def only_one(values: Sequence[tuple[str, Any]]) -> Any:
    """The value of the one field that is given, or of several that agree; None without any."""
    given = [(name, value) for name, value in values if value is not None]
    if any(value != given[0][1] for _, value in given):
        shown = " and ".join(f"{name} = {value}" for name, value in given)
        raise ApiError(400, f"{shown} contradict each other", param=given[0][0])
    return given[0][1] if given else None
