"""Tokens on their way from the engine to a client's connection."""

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.edge.service.streams.stream_limits import StreamLimits
from control_plane.engine.ports import SequenceDelta

#: What the parts of a delta take in memory.
_TOKEN_BYTES, _ENTRY_BYTES, _ALTERNATIVE_BYTES = 40, 100, 110

#: Of its own bound each stream has so much left when the process has used half of its own.
_SHORT_SHARE = 1 / 16


def memory_bytes(delta: SequenceDelta) -> int:
    """What a delta takes in memory, roughly: with 20 alternatives 60 times as much as without log probabilities."""
    num_alternatives = sum(len(entry.top) for entry in delta.logprobs)
    logprob_bytes = len(delta.logprobs) * _ENTRY_BYTES + num_alternatives * _ALTERNATIVE_BYTES
    return len(delta.token_ids) * _TOKEN_BYTES + len(delta.text) + logprob_bytes


@dataclass(slots=True)
class UnwrittenTotal:
    """Bytes of all streams and unary answers that are not written yet."""

    num_bytes: int = 0


class Backlog:
    """Counts what of one stream is not written yet; has its request held while that is too much. Without `limits` nothing is ever held."""

    def __init__(
        self, limits: StreamLimits | None, hold: Callable[[], None], unhold: Callable[[], None], total: UnwrittenTotal | None = None
    ) -> None:
        self._limits = limits
        self._hold = hold
        self._unhold = unhold
        self._total = total or UnwrittenTotal()
        self._num_bytes = 0
        self._is_closed = False
        self.num_tokens = 0
        self.is_held = False

    def add(self, num_tokens: int, num_bytes: int = 0) -> None:
        """Take tokens from the engine, which take so much memory."""
        self.num_tokens += num_tokens
        if not self._is_closed:
            self._change_bytes(num_bytes)
        if self._limits is not None and not self.is_held and self._share(self._limits) > 1:
            self.is_held = True
            self._hold()

    def remove(self, num_tokens: int) -> None:
        """Tokens have been written."""
        assert num_tokens <= self.num_tokens, "more tokens were written than came"
        if num_tokens:
            self._change_bytes(-(self._num_bytes * num_tokens // self.num_tokens))
        self.num_tokens -= num_tokens
        if self._limits is not None and self.is_held and self._share(self._limits) < 0.5:
            self.is_held = False
            self._unhold()

    def close(self) -> None:
        """Nobody will write the rest."""
        self._change_bytes(-self._num_bytes)
        self._is_closed = True

    def _change_bytes(self, difference: int) -> None:
        self._num_bytes += difference
        self._total.num_bytes += difference

    def _share(self, limits: StreamLimits) -> float:
        """Of what there may be the part that there is."""
        is_short = self._total.num_bytes > limits.max_unwritten_total_bytes // 2
        max_bytes = limits.max_unwritten_bytes * (_SHORT_SHARE if is_short else 1)
        return max(self.num_tokens / limits.max_unwritten_tokens, self._num_bytes / max_bytes)
