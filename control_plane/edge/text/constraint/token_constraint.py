"""The constraint of one sequence, behind the core's protocol."""

import time

from llguidance import LLMatcher

from control_plane.core.constraint import ConstraintViolated
from control_plane.edge.text.constraint.grammar import reason_of
from control_plane.edge.text.constraint.limits import CPU_SECONDS_AT_ONCE, CPU_SECONDS_PER_TOKEN
from control_plane.edge.text.constraint.token_mask import EndTokens

#: What the library says of a token that does not fit; a matcher can also stop because it has become too complex.
_MISFIT = "doesn't satisfy the grammar"


class TokenConstraint:
    """Implements `control_plane.core.constraint.Constraint`. Used on one thread at a time.

    End tokens are not left to the grammar: they are allowed exactly where the output is complete, whatever it says of them. A grammar
    that has become too complex, or takes too much of the engine's time, allows nothing more.
    """

    __slots__ = ("_cpu_seconds_left", "_ends", "_has_ended", "_matcher")

    def __init__(self, matcher: LLMatcher, ends: EndTokens) -> None:
        self._matcher = matcher
        self._ends = ends
        self._has_ended = False
        self._cpu_seconds_left = CPU_SECONDS_AT_ONCE

    def push(self, token_id: int) -> None:
        """See `Constraint.push`."""
        if self._has_ended:
            raise ConstraintViolated(f"token id {token_id} comes after the end")
        if self._is_exhausted:
            return
        if token_id in self._ends:
            if not self._matcher.is_accepting():
                raise ConstraintViolated(f"end token {token_id} comes before the output is complete")
            self._has_ended = True
        else:
            self._consume(token_id)

    def mask(self) -> bytes:
        """See `Constraint.mask`."""
        if self._has_ended or self._is_exhausted:
            return self._ends.nothing
        started_at = time.thread_time()
        allowed = self._ends.nothing if self._matcher.is_stopped() else self._matcher.compute_bitmask()
        self._cpu_seconds_left -= time.thread_time() - started_at
        is_complete = not self._matcher.is_error() and self._matcher.is_accepting()
        return self._ends.put_into(allowed, is_complete)

    @property
    def _is_exhausted(self) -> bool:
        return self._cpu_seconds_left < 0 or self._matcher.is_error()

    def _consume(self, token_id: int) -> None:
        if self._matcher.is_stopped():
            raise ConstraintViolated(f"token id {token_id} comes after complete output")
        started_at = time.thread_time()
        fits = self._matcher.consume_token(token_id)
        left = self._cpu_seconds_left + CPU_SECONDS_PER_TOKEN - (time.thread_time() - started_at)
        self._cpu_seconds_left = min(left, CPU_SECONDS_AT_ONCE)
        if not fits and _MISFIT in (error := self._matcher.get_error()):
            raise ConstraintViolated(f"token id {token_id} is not allowed: {reason_of(error)}")
