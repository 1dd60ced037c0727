"""Log probabilities as they come from a worker: with alternatives a long prompt has a million of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from control_plane.core.step import TokenLogprob

#: Tokens that are unpacked at a time.
_UNPACKED_TOKENS = 64


@dataclass(frozen=True, slots=True, eq=False)
class PackedLogprobs(Sequence[TokenLogprob]):
    """Log probabilities of consecutive tokens, unpacked when they are looked at."""

    token_ids: Sequence[int]
    logprobs: memoryview  # one per token
    num_alternatives: int  # per token
    top_token_ids: memoryview  # those of one token after those of the other
    top_logprobs: memoryview

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedLogprobs": ...
    def __getitem__(self, index: int | slice) -> "TokenLogprob | PackedLogprobs":
        if isinstance(index, int):
            if not 0 <= index < len(self):
                raise IndexError(index)
            return next(iter(self[index : index + 1]))
        first, last, step = index.indices(len(self))
        assert step == 1, "consecutive tokens"
        tops = slice(first * self.num_alternatives, last * self.num_alternatives)
        span = slice(first, last)
        return PackedLogprobs(
            self.token_ids[span], self.logprobs[span], self.num_alternatives, self.top_token_ids[tops], self.top_logprobs[tops]
        )

    def __iter__(self) -> Iterator[TokenLogprob]:
        for first in range(0, len(self), _UNPACKED_TOKENS):
            yield from self[first : first + _UNPACKED_TOKENS]._unpacked()

    def _unpacked(self) -> Iterator[TokenLogprob]:
        count = self.num_alternatives
        tops = list(zip(self.top_token_ids.tolist(), self.top_logprobs.tolist(), strict=True))
        for row, (token_id, logprob) in enumerate(zip(self.token_ids, self.logprobs.tolist(), strict=True)):
            yield TokenLogprob(token_id, logprob, tuple(tops[row * count : (row + 1) * count]))
