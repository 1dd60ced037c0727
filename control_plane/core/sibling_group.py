"""The choices of one request, which compute their prompt once."""

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from control_plane.core.sequence import Sequence

_choice = attrgetter("choice")


class SiblingGroup:
    """Made once per request with several choices, and given to the sequence of each.

        closed: the leader, which is the lowest choice there is, computes the prompt; its siblings are parked
        open:   the prompt was acknowledged; the siblings may run, and a worker keeps the pages of the prompt until they all do

    A choice that ends or is held leaves; a leader that leaves a closed group hands over to the next.
    """

    def __init__(self) -> None:
        self.leader: Sequence | None = None
        self.is_open = False
        self.has_started = False  # a choice ran
        self._siblings: list[Sequence] = []  # by choice; those that did not run yet

    @property
    def is_served(self) -> bool:
        """Whether nobody needs the pages of the prompt any more."""
        return self.is_open and not self._siblings

    def parks(self, sequence: "Sequence") -> bool:
        """Whether a sequence waits for the leader."""
        return not self.is_open and sequence in self._siblings

    def join(self, sequence: "Sequence") -> None:
        """Add a sequence that is to wait; a leader that waits again still leads."""
        if self.is_open or sequence is self.leader:
            return
        if self.leader is None:
            self.leader = sequence
        else:
            insort(self._siblings, sequence, key=_choice)

    def open(self) -> "list[Sequence]":
        """Let the siblings run; returns them."""
        self.is_open = True
        return list(self._siblings)

    def admitted(self, sequence: "Sequence") -> None:
        """Note that a sequence runs."""
        self.has_started = True
        self._forget(sequence)

    def leave(self, sequence: "Sequence") -> "Sequence | None":
        """Remove a sequence; returns the next leader if it was the leader of a closed group."""
        self._forget(sequence)
        if sequence is not self.leader:
            return None
        self.leader = self._siblings.pop(0) if self._siblings and not self.is_open else None
        return self.leader

    def _forget(self, sequence: "Sequence") -> None:
        if sequence in self._siblings:
            self._siblings.remove(sequence)
