"""Builder of lane admissions as the control plane makes them."""

from collections.abc import Sequence
from typing import Any

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import LaneAdmission


def core_admission(lane: int = 0, tokens: Sequence[int] = (5,), pages: Sequence[int] = (0, 1, 2, 3), **changes: Any) -> LaneAdmission:
    """A prompt of `tokens`, nothing computed, one cache group; `changes` replaces any field."""
    fields = {
        "lane": lane,
        "generation": 1,
        "token_ids": tokens,
        "num_prompt_tokens": len(tokens),
        "num_computed_tokens": 0,
        "final_length": len(tokens) + 8,
        "min_length": 0,
        "end_token_ids": (),
        "page_tables": (pages,),
        "partition": 0,
        "sampling": SamplingParams(),
    }
    return LaneAdmission(**{**fields, **changes})
