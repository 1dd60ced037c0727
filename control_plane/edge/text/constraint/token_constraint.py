"""The constraint of one sequence, behind the core's protocol."""

from llguidance import LLMatcher

from control_plane.core.constraint import ConstraintExhausted, ConstraintViolated
from control_plane.edge.text.constraint.grammar import reason_of
from control_plane.edge.text.constraint.token_mask import EndTokens

#: What the library says of a token that does not fit; a matcher can also stop because it has become too complex.
_MISFIT = "doesn't satisfy the grammar"


class TokenConstraint:
    """Implements `control_plane.core.constraint.Constraint`. Used on one thread at a time.

    End tokens are not left to the grammar: they are allowed exactly where the output is complete, whatever it says of them.
    """

    __slots__ = ("_ends", "_has_ended", "_matcher")

    def __init__(self, matcher: LLMatcher, ends: EndTokens) -> None:
        self._matcher = matcher
        self._ends = ends
        self._has_ended = False

    def push(self, token_id: int) -> None:
        """See `Constraint.push`."""
        if self._has_ended:
            raise ConstraintViolated(f"token id {token_id} comes after the end")
        if self._matcher.is_error():
            return  # too complex: the next mask tells
        if token_id in self._ends:
            if not self._matcher.is_accepting():
                raise ConstraintViolated(f"end token {token_id} comes before the output is complete")
            self._has_ended = True
        elif self._matcher.is_stopped():
            raise ConstraintViolated(f"token id {token_id} comes after complete output")
        elif not self._matcher.consume_token(token_id) and _MISFIT in (error := self._matcher.get_error()):
            raise ConstraintViolated(f"token id {token_id} is not allowed: {reason_of(error)}")

    def mask(self) -> bytes:
        """See `Constraint.mask`."""
        if self._has_ended:
            return self._ends.nothing
        allowed = self._ends.nothing if self._matcher.is_stopped() else self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ConstraintExhausted(f"too complex: {reason_of(self._matcher.get_error())}")
        return self._ends.put_into(allowed, self._matcher.is_accepting())
