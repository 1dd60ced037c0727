"""The ranges of sampling parameters, as scheduler and workers hold whoever sends them to."""

import math

from pypto_serving.wire.checks import check_equal_lengths, check_range
from pypto_serving.wire.columns import Floats, Ids, unpack_finite, unpack_ids_below
from pypto_serving.wire.contract import MAX_ALTERNATIVES
from pypto_serving.worker.v1 import worker_pb2


def check_sampling(field: str, sampling: worker_pb2.LaneSampling, vocab_size: int) -> tuple[Ids, Floats]:
    """Check parameters as a whole, which stand in `field` of a frame; returns the biased tokens and their biases. Raises FrameError."""
    check_range(f"{field}.temperature", sampling.temperature, 0.0, math.inf)
    check_range(f"{field}.top_p", sampling.top_p, 0.0, 1.0)
    check_range(f"{field}.min_p", sampling.min_p, 0.0, 1.0)
    check_range(f"{field}.presence_penalty", sampling.presence_penalty, -math.inf, math.inf)
    check_range(f"{field}.frequency_penalty", sampling.frequency_penalty, -math.inf, math.inf)
    check_range(f"{field}.repetition_penalty", sampling.repetition_penalty, math.ulp(0.0), math.inf)
    check_range(f"{field}.top_logprobs", sampling.top_logprobs, 0, min(vocab_size, MAX_ALTERNATIVES))
    check_range(f"{field}.prompt_logprobs", sampling.prompt_logprobs, 0, min(vocab_size, MAX_ALTERNATIVES))
    token_ids = unpack_ids_below(sampling.bias_token_ids, f"{field}.bias_token_ids", vocab_size)
    values = unpack_finite(sampling.bias_values, f"{field}.bias_values")
    check_equal_lengths({f"{field}.bias_token_ids": token_ids, f"{field}.bias_values": values})
    return token_ids, values
