"""How the rows of a step are sampled, in columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.lanes.step_rules import Bools, Ints
from worker.lanes.token_entries import LaneTokenLists, TokenEntries
from worker.step import LaneSampling

_FORMATS = {
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
class SamplingColumns:
    """Sampling parameters of some rows; each attribute is a column [rows]. See worker.step.LaneSampling for what switches one off."""

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
class TokenMasks:
    """What the masked rows may draw."""

    rows: Ints  # [M]
    allowed: npt.NDArray[np.uint8]  # [M, ceil(vocab / 8)]: one bit per token id, lowest bit first

    @classmethod
    def unpack(cls, rows: Sequence[int], masks: Sequence[bytes]) -> "TokenMasks":
        """Masks as they come with a step."""
        # A copy, as torch takes no read-only arrays.
        allowed = np.frombuffer(bytearray().join(masks), dtype=np.uint8)
        return cls(np.array(rows, dtype=np.int64), allowed.reshape(len(rows), len(masks[0]) if rows else 0))


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Everything but the logits that decides which token each row draws."""

    columns: SamplingColumns
    indices: Ints  # [rows]: absolute index of the token to be drawn
    banned: TokenEntries  # tokens that can not be drawn now
    biases: TokenEntries
    history: TokenEntries  # known tokens of the penalised rows; values are 1 for generated tokens and 0 for those of the prompt
    masks: TokenMasks


class SamplingTable:
    """Sampling parameters of every lane."""

    def __init__(self, num_lanes: int) -> None:
        self._columns = np.zeros(num_lanes, dtype=list(_FORMATS.items()))
        self._biases = LaneTokenLists(num_lanes)

    def put(self, lane: int, sampling: LaneSampling) -> None:
        """Replace the parameters of `lane`."""
        values = {name: getattr(sampling, name) for name in _FORMATS}
        if sampling.prompt_logprobs is None:
            values["prompt_logprobs"] = -1
        self._columns[lane] = tuple(values.values())
        self._biases.put(lane, sampling.bias_token_ids, sampling.bias_values)

    def clear(self) -> None:
        """Forget the biases; columns of free lanes are never read."""
        self._biases.clear()

    def columns(self, lanes: Ints) -> SamplingColumns:
        """Parameters of `lanes`."""
        chosen = self._columns[lanes]
        return SamplingColumns(**{name: chosen[name] for name in _FORMATS})

    def biases(self, lanes: Ints) -> TokenEntries:
        """Biases of `lanes`; row i is lane `lanes[i]`."""
        return self._biases.gather(lanes)
