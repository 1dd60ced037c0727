"""Output that clients have not taken yet: how much it is, and holding requests whose clients are slow."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.core.sampling import SamplingParams
from control_plane.edge.config import StreamOptions

#: What a token takes in memory: its id, the text that it has brought if stop strings are looked for, its log probability, an alternative.
_ID_BYTES, _TEXT_BYTES, _ENTRY_BYTES, _ALTERNATIVE_BYTES = 4, 60, 100, 110

#: When all streams together have used half of what they may, each may use only so much of its own part.
_SHORT_SHARE = 1 / 16


def token_bytes(sampling: SamplingParams, has_stops: bool) -> int:
    """What an unwritten token takes in memory, roughly: with 20 alternatives hundreds of times as much as without log probabilities."""
    logprob_bytes = _ENTRY_BYTES + sampling.top_logprobs * _ALTERNATIVE_BYTES if sampling.logprobs else 0
    return _ID_BYTES + has_stops * _TEXT_BYTES + logprob_bytes


@dataclass(slots=True)
class UnwrittenTotal:
    """Bytes of all streams and unary answers that are not written yet."""

    num_bytes: int = 0


class Backlog:
    """Knows how much of one stream is not written yet; has its request held while that is too much, unless `options` are None."""

    __slots__ = (
        *("_hold", "_is_closed", "_max_tokens", "_max_tokens_when_short", "_shortage_bytes"),
        *("_token_bytes", "_total", "_unhold", "is_held", "num_tokens"),
    )

    def __init__(
        self,
        options: StreamOptions | None,
        token_bytes: int,
        total: UnwrittenTotal,
        hold: Callable[[], None],
        unhold: Callable[[], None],
    ) -> None:
        self._max_tokens = self._max_tokens_when_short = self._shortage_bytes = math.inf
        if options is not None:
            max_tokens = options.max_unwritten_bytes / token_bytes if token_bytes else math.inf
            self._max_tokens = min(options.max_unwritten_tokens, max_tokens)
            self._max_tokens_when_short = min(options.max_unwritten_tokens, max_tokens * _SHORT_SHARE)
            self._shortage_bytes = options.max_unwritten_total_bytes // 2
        self._token_bytes = token_bytes
        self._total = total
        self._hold = hold
        self._unhold = unhold
        self._is_closed = False
        self.num_tokens = 0
        self.is_held = False

    def set(self, num_tokens: int) -> None:
        """So many tokens are not written now."""
        if self._is_closed:
            return
        total = self._total
        total.num_bytes += (num_tokens - self.num_tokens) * self._token_bytes
        self.num_tokens = num_tokens
        most = self._max_tokens if total.num_bytes <= self._shortage_bytes else self._max_tokens_when_short
        if self.is_held and num_tokens < most / 2:
            self.is_held = False
            self._unhold()
        elif num_tokens > most and not self.is_held:
            self.is_held = True
            self._hold()

    def close(self) -> None:
        """Nobody will write the rest."""
        self._total.num_bytes -= 0 if self._is_closed else self.num_tokens * self._token_bytes
        self._is_closed = True
