"""Tokens on their way from the engine to a client's connection."""

from collections.abc import Callable


class Backlog:
    """Counts the tokens of one stream that are not written yet; has its request held while there are too many.

    Without `max_tokens` nothing is ever held.
    """

    def __init__(self, max_tokens: int | None, hold: Callable[[], None], unhold: Callable[[], None]) -> None:
        self._max_tokens = max_tokens
        self._hold = hold
        self._unhold = unhold
        self.num_tokens = 0
        self.is_held = False

    def add(self, num_tokens: int) -> None:
        """Take tokens from the engine."""
        self.num_tokens += num_tokens
        if self._max_tokens is not None and not self.is_held and self.num_tokens > self._max_tokens:
            self.is_held = True
            self._hold()

    def remove(self, num_tokens: int) -> None:
        """Tokens have been written."""
        self.num_tokens -= num_tokens
        assert self.num_tokens >= 0, "more tokens were written than came"
        if self._max_tokens is not None and self.is_held and self.num_tokens < self._max_tokens // 2:
            self.is_held = False
            self._unhold()
