"""How the rows of a step are sampled, in columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from worker.batch import UnreadTokens
from worker.sampling.token_entries import LaneTokenLists, TokenCounts, TokenEntries
from worker.step import SAMPLING_FORMATS, Ints, LaneAdmission, SamplingColumns


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
    banned: TokenEntries  # tokens that cannot be drawn now
    biases: TokenEntries
    history: TokenEntries  # known tokens of the penalised rows, each once; values: how often it was generated
    unread: UnreadTokens | None  # last tokens of penalised rows that `history` lacks
    masks: TokenMasks

    @property
    def adjusted(self) -> Ints:
        """Rows whose logits are changed before the temperature, rising."""
        unread = () if self.unread is None else (self.unread.rows,)
        return np.unique(np.concatenate([self.masks.rows, self.banned.rows, self.biases.rows, self.history.rows, *unread]))

    def only_adjusted(self) -> "SamplingRows":
        """Those rows alone, numbered from 0 on."""
        kept = self.adjusted
        number = np.zeros(len(self.indices), dtype=np.int64)
        number[kept] = np.arange(len(kept))
        return SamplingRows(
            columns=SamplingColumns(*(getattr(self.columns, name)[kept] for name in SAMPLING_FORMATS)),
            indices=self.indices[kept],
            banned=replace(self.banned, rows=number[self.banned.rows]),
            biases=replace(self.biases, rows=number[self.biases.rows]),
            history=replace(self.history, rows=number[self.history.rows]),
            unread=self.unread and replace(self.unread, rows=number[self.unread.rows]),
            masks=replace(self.masks, rows=number[self.masks.rows]),
        )


class SamplingTable:
    """How every lane is sampled: its parameters, and what its penalties look at."""

    def __init__(self, num_lanes: int) -> None:
        self._columns = np.zeros(num_lanes, dtype=list(SAMPLING_FORMATS.items()))
        self._biases = LaneTokenLists(num_lanes)
        self._counts = TokenCounts()

    def admit(self, admission: LaneAdmission) -> None:
        """Replace everything about a lane."""
        lane, sampling, length = admission.lane, admission.sampling, admission.num_prompt_tokens
        no_prompt_logprobs = {"prompt_logprobs": -1} if sampling.prompt_logprobs is None else {}
        self._columns[lane] = tuple(({name: getattr(sampling, name) for name in SAMPLING_FORMATS} | no_prompt_logprobs).values())
        self._biases.put(lane, sampling.bias_token_ids, sampling.bias_values)
        self._counts.drop(lane)
        if self.columns(np.array([lane])).penalised.any():
            room = admission.final_length - len(admission.token_ids)
            self._counts.put(lane, admission.token_ids[:length], admission.token_ids[length:], room)

    def append(self, lanes: Ints, token_ids: Ints) -> None:
        """Note one drawn token for each of `lanes`."""
        self._counts.append(lanes, token_ids)

    def clear(self) -> None:
        """Forget biases and counts; columns of free lanes are never read."""
        self._biases.clear()
        self._counts.clear()

    def columns(self, lanes: Ints) -> SamplingColumns:
        """Parameters of `lanes`."""
        chosen = self._columns[lanes]
        return SamplingColumns(**{name: chosen[name] for name in SAMPLING_FORMATS})

    def biases(self, lanes: Ints) -> TokenEntries:
        """Biases of `lanes`; row i is lane `lanes[i]`."""
        return self._biases.gather(lanes)

    def history(self, lanes: Ints) -> TokenEntries:
        """Known tokens of the lanes with penalties, as in SamplingRows; row i is lane `lanes[i]`."""
        return self._counts.gather(lanes)
