"""What the runner executes in one step, and what it answers: the worker protocol's frames as numpy columns; and what it can hold.

protos/pypto_serving/worker/v1/worker.proto is the contract; a step is applied in the order release, admit, trim, grow, run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.columns import Floats, Generations, Ids

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_NO_IDS: Ids = np.empty(0, dtype=np.uint32)

#: Kinds of the columns in which lanes keep their sampling parameters.
SAMPLING_FORMATS = {
    "temperature": "f4",
    "top_p": "f4",
    "top_k": "i8",
    "min_p": "f4",
    "repetition_penalty": "f4",
    "presence_penalty": "f4",
    "frequency_penalty": "f4",
    "seed": "u8",
    "logprobs": "?",
    "top_logprobs": "i8",
    "prompt_logprobs": "i8",
}


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """A set of layers whose KV shares page tables."""

    name: str
    page_tokens: int
    num_pages: int  # per partition, numbered from 0, scratch pages not counted
    window_tokens: int | None = None
    num_layers: int = 1
    row_bytes: int = 1  # that one token takes in one layer


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Limits of a runner; the pages of each cache group come with the cache."""

    vocab_size: int
    max_model_len: int  # most tokens of a sequence
    max_lanes: int
    max_step_tokens: int
    num_partitions: int = 1


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What Welcome says about the worker, and what frames are held against."""

    incarnation: str
    model_fingerprint: str
    numerics_id: str
    vocab_size: int
    max_model_len: int
    max_lanes: int
    max_step_tokens: int
    max_steps_in_flight: int
    lease_seconds: float
    num_partitions: int
    cache_groups: tuple[CacheGroup, ...]
    weights_digest: Callable[[], str] = str  # empty until it is known
    model_name: str = "a model"  # for people

    def max_table_length(self, group: CacheGroup) -> int:
        """Most entries of a page table of `group`."""
        return -(-self.max_model_len // group.page_tokens)


@dataclass(frozen=True, slots=True)
class LaneSampling:
    """How the tokens of a lane are drawn; every field is in force as it stands."""

    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # uint64
    bias_token_ids: Ids = field(default_factory=lambda: _NO_IDS)
    bias_values: Floats = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """LaneSampling of some rows; each attribute is a column [rows]."""

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: Ints
    min_p: npt.NDArray[np.float32]
    repetition_penalty: npt.NDArray[np.float32]
    presence_penalty: npt.NDArray[np.float32]
    frequency_penalty: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]
    logprobs: Bools
    top_logprobs: Ints
    prompt_logprobs: Ints  # -1: prompt tokens are not reported

    @property
    def penalised(self) -> Bools:
        """Rows that any penalty changes."""
        penalised: Bools = (self.repetition_penalty != 1) | (self.presence_penalty != 0) | (self.frequency_penalty != 0)
        return penalised


@dataclass(frozen=True, slots=True)
class LaneAdmission:
    """Takes a sequence into a lane."""

    lane: int
    generation: int
    token_ids: Ids
    num_prompt_tokens: int
    num_computed_tokens: int
    final_length: int
    min_length: int
    end_token_ids: Ids
    page_tables: Sequence[Ids]  # one per cache group; NO_PAGE marks entries that left a window
    partition: int
    sampling: LaneSampling
    constrained: bool = False
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A step as columns, as worker.service.frames lets them through: equal lengths, ids in range, no lane named twice."""

    step_id: int
    released_lanes: Ids = field(default_factory=lambda: _NO_IDS)
    admissions: Sequence[LaneAdmission] = ()
    trimmed_lanes: Ids = field(default_factory=lambda: _NO_IDS)
    trimmed_groups: Ids = field(default_factory=lambda: _NO_IDS)
    trimmed_entries: Ids = field(default_factory=lambda: _NO_IDS)
    grown_lanes: Ids = field(default_factory=lambda: _NO_IDS)
    grown_groups: Ids = field(default_factory=lambda: _NO_IDS)
    grown_pages: Ids = field(default_factory=lambda: _NO_IDS)
    chunk_lanes: Ids = field(default_factory=lambda: _NO_IDS)
    chunk_tokens: Ids = field(default_factory=lambda: _NO_IDS)
    masks: dict[int, bytes] = field(default_factory=dict)  # lane -> one bit per token id, lowest bit first


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one sampled position, from the unmodified logits."""

    lane: int
    sampled: float
    top_token_ids: Ids
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class PromptTokenLogprobs:
    """Log probabilities of consecutive prompt tokens; the top columns hold as many alternatives per token as were asked for."""

    lane: int
    generation: int
    first_index: int
    logprobs: Floats
    top_token_ids: Ids
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class LaneError:
    """A lane that cannot go on."""

    lane: int
    generation: int
    message: str
    nothing_to_draw: bool = False  # the request's own parameters exclude every token; otherwise the model is at fault


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a step that did not fail as a whole."""

    step_id: int
    lanes: Ids
    generations: Generations
    token_ids: Ids
    digest: int
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[PromptTokenLogprobs] = ()
    lane_errors: Sequence[LaneError] = ()
