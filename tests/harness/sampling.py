"""Draws from given logits, the way lanes of a worker would."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fakes.device.model import limits
from fakes.device.steps import ids, step, worker_admission

from worker.lanes.lane_table import LaneTable
from worker.sampling.sampler import SampledTokens, sample
from worker.step import CacheGroup, LaneSampling


def lane_table(samplings: Sequence[LaneSampling], vocab_size: int, masks: Mapping[int, bytes] | None = None, **fields: Any) -> LaneTable:
    """A table with one lane per sampling that runs its last token; `fields` apply to every admission."""
    bounds = limits(vocab_size, max_lanes=len(samplings), max_step_tokens=len(samplings))
    table = LaneTable(bounds, [CacheGroup("full", 4, 32)])
    masks, fields = dict(masks or {}), {"token_ids": (0,), **fields}
    fields["num_computed_tokens"] = len(fields["token_ids"]) - 1
    admissions = [worker_admission(lane, sampling=sampling, constrained=lane in masks, **fields) for lane, sampling in enumerate(samplings)]
    table.apply(step(1, admissions=admissions, masks=masks))
    return table


def sample_rows(logits: Any, samplings: Sequence[LaneSampling], masks: Mapping[int, bytes] | None = None, **fields: Any) -> SampledTokens:
    """Draw once for each sampling; a single row of logits is used for all."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    logits = logits.expand(len(samplings), -1) if logits.dim() == 1 else logits
    table = lane_table(samplings, logits.shape[-1], masks, **fields)
    before = logits.clone()
    sampled = sample(logits, table.sampling_rows(np.arange(len(samplings)), dict(masks or {})))
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    return sampled


def draw(logits: Any, samplings: Sequence[LaneSampling], masks: Mapping[int, bytes] | None = None, **fields: Any) -> list[int]:
    """The tokens of `sample_rows`, all of which are there."""
    sampled = sample_rows(logits, samplings, masks, **fields)
    assert not sampled.failed.any()
    tokens: list[int] = sampled.token_ids.tolist()
    return tokens


def bias(values: Mapping[int, float]) -> dict[str, Any]:
    """The fields of a sampling that biases tokens."""
    return {"bias_token_ids": ids(*values), "bias_values": np.array(list(values.values()), dtype=np.float32)}
