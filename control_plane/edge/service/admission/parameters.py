"""Parameters of a request: defaults, ranges, and their form in the engine.

Whatever is sampled with is read out of the float32 fields of EffectiveParameters, so that a resume from their echo draws the same tokens.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message

from control_plane.core.sampling import SamplingParams
from control_plane.edge.service.errors import InvalidArgument
from pypto_serving.inference.v1 import inference_pb2
from pypto_serving.wire.contract import MIN_TEMPERATURE

_MAX_CHOICES = 64
_MAX_BIASES = 1024
_MAX_STOPS = 64
_MAX_STOP_BYTES = 1024
_MAX_STOP_TOKENS = 256
_MAX_ALTERNATIVES = 20
_MAX_STREAM_INTERVAL = 1024

BUILT_IN_SAMPLING = inference_pb2.SamplingParams(
    temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
)
#: Fields for which a model or an operator may have another default.
SAMPLING_DEFAULTS = tuple(field.name for field, _ in BUILT_IN_SAMPLING.ListFields())
_BUILT_IN_STOPPING = inference_pb2.StoppingParams(min_tokens=0, ignore_eos=False, include_stop=False)
_BUILT_IN_OUTPUT = inference_pb2.OutputOptions(
    skip_special_tokens=True, logprobs=False, top_logprobs=0, prompt_token_ids=False, stream_interval=1
)


def effective_parameters(
    spec: inference_pb2.GenerationSpec, default_sampling: inference_pb2.SamplingParams
) -> inference_pb2.EffectiveParameters:
    """The parameters in force, all but max_tokens: the request's, else the defaults. A seed is drawn when there is none."""
    effective = inference_pb2.EffectiveParameters(
        sampling=default_sampling, stopping=_BUILT_IN_STOPPING, output=_BUILT_IN_OUTPUT, n=spec.n if spec.HasField("n") else 1
    )
    effective.sampling.MergeFrom(spec.sampling)
    effective.stopping.MergeFrom(spec.stopping)
    effective.output.MergeFrom(spec.output)
    if not effective.sampling.HasField("seed"):
        effective.sampling.seed = int.from_bytes(os.urandom(8), "little")
    return effective


def check_complete(effective: inference_pb2.EffectiveParameters) -> None:
    """Require all fields that `effective_parameters` sets, as a resume must bring them; raises InvalidArgument."""
    required: tuple[tuple[str, Message, Message], ...] = (
        ("sampling", effective.sampling, inference_pb2.SamplingParams(seed=0)),
        ("sampling", effective.sampling, BUILT_IN_SAMPLING),
        ("stopping", effective.stopping, inference_pb2.StoppingParams(max_tokens=0)),
        ("stopping", effective.stopping, _BUILT_IN_STOPPING),
        ("output", effective.output, _BUILT_IN_OUTPUT),
    )
    for name, message, complete in required:
        missing = _set_fields(complete) - _set_fields(message)
        if missing:
            raise InvalidArgument(f"resume.effective.{name}.{min(missing)} is absent, must be as Started reported it")


def check_parameters(effective: inference_pb2.EffectiveParameters, vocab_size: int, path: str = "") -> None:
    """Check every range; `path` goes before the names of fields. Raises InvalidArgument."""
    _require(1 <= effective.n <= _MAX_CHOICES, f"{path}n", effective.n, f"from 1 to {_MAX_CHOICES}")
    check_sampling(effective.sampling, vocab_size, f"{path}sampling.")
    _check_stopping(effective.stopping, vocab_size, f"{path}stopping.")
    _check_output(effective.output, f"{path}output.")


def check_sampling(sampling: inference_pb2.SamplingParams, vocab_size: int, path: str) -> None:
    """Check ranges of complete sampling parameters; raises InvalidArgument."""
    temperature, repetition = sampling.temperature, sampling.repetition_penalty
    _require(temperature >= 0 and math.isfinite(temperature), f"{path}temperature", temperature, ">= 0 and finite")
    _require(0 < sampling.top_p <= 1, f"{path}top_p", sampling.top_p, "in (0, 1]")
    _require(0 <= sampling.min_p <= 1, f"{path}min_p", sampling.min_p, "in [0, 1]")
    _require(repetition > 0 and math.isfinite(repetition), f"{path}repetition_penalty", repetition, "> 0 and finite")
    _require(-2 <= sampling.presence_penalty <= 2, f"{path}presence_penalty", sampling.presence_penalty, "in [-2, 2]")
    _require(-2 <= sampling.frequency_penalty <= 2, f"{path}frequency_penalty", sampling.frequency_penalty, "in [-2, 2]")
    _require_size(f"{path}logit_bias", len(sampling.logit_bias), _MAX_BIASES)
    for token_id, bias in sampling.logit_bias.items():
        check_token_ids([token_id], vocab_size, f"{path}logit_bias")
        _require(-100 <= bias <= 100, f"{path}logit_bias[{token_id}]", bias, "in [-100, 100]")


def check_num_tokens(field: str, num_tokens: int, limit: int) -> None:
    """Require a list of token ids to be no longer than a limit, before anything looks into it; raises InvalidArgument."""
    if num_tokens > limit:
        raise InvalidArgument(f"{field} has {num_tokens} tokens, may have at most {limit}")


def check_token_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Require every id to be below the vocabulary size; raises InvalidArgument."""
    if token_ids and max(token_ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(token_ids) if token_id >= vocab_size)
        raise InvalidArgument(f"{field}: token id {token_ids[index]} at position {index} is not below the vocabulary size {vocab_size}")


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a choice: the first has the request's own, so that it is what n = 1 gives."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(seed.to_bytes(8, "little") + choice.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:8], "little")


def sampling_params(effective: inference_pb2.EffectiveParameters, vocab_size: int) -> SamplingParams:
    """The engine's form of checked parameters, with the request's own seed."""
    sampling, output = effective.sampling, effective.output
    values: dict[str, Any] = {name: getattr(sampling, name) for name in SAMPLING_DEFAULTS}
    values["temperature"] = sampling.temperature if sampling.temperature >= MIN_TEMPERATURE else 0.0
    values["top_k"] = sampling.top_k if sampling.top_k < vocab_size else 0
    return SamplingParams(
        **values,
        seed=sampling.seed,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
        logprobs=output.logprobs,
        top_logprobs=min(output.top_logprobs, vocab_size),
        prompt_logprobs=min(output.prompt_logprobs, vocab_size) if output.HasField("prompt_logprobs") else None,
    )


def _check_stopping(stopping: inference_pb2.StoppingParams, vocab_size: int, path: str) -> None:
    _require_size(f"{path}stop", len(stopping.stop), _MAX_STOPS)
    for index, stop in enumerate(stopping.stop):
        num_bytes = len(stop.encode())
        if not 1 <= num_bytes <= _MAX_STOP_BYTES:
            raise InvalidArgument(f"{path}stop[{index}] has {num_bytes} bytes, must have from 1 to {_MAX_STOP_BYTES}")
    _require_size(f"{path}stop_token_ids", len(stopping.stop_token_ids), _MAX_STOP_TOKENS)
    check_token_ids(list(stopping.stop_token_ids), vocab_size, f"{path}stop_token_ids")


def _check_output(output: inference_pb2.OutputOptions, path: str) -> None:
    _require(output.top_logprobs <= _MAX_ALTERNATIVES, f"{path}top_logprobs", output.top_logprobs, f"at most {_MAX_ALTERNATIVES}")
    _require(output.logprobs or not output.top_logprobs, f"{path}top_logprobs", output.top_logprobs, "0 unless logprobs is set")
    _require(output.prompt_logprobs <= _MAX_ALTERNATIVES, f"{path}prompt_logprobs", output.prompt_logprobs, f"at most {_MAX_ALTERNATIVES}")
    interval = output.stream_interval
    _require(1 <= interval <= _MAX_STREAM_INTERVAL, f"{path}stream_interval", interval, f"from 1 to {_MAX_STREAM_INTERVAL}")


def _set_fields(message: Message) -> set[str]:
    return {field.name for field, _ in message.ListFields()}


def _require(holds: bool, field: str, value: float, limit: str) -> None:
    if holds:
        return
    text = str(value)
    if isinstance(value, float):  # the shortest text that means this value of a `float` field and no other
        text = f"{value:g}" if np.float32(f"{value:g}") == np.float32(value) else str(np.float32(value))
    raise InvalidArgument(f"{field} = {text}, must be {limit}")


def _require_size(field: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArgument(f"{field} has {size} entries, may have at most {limit}")
