"""What the core needs of a constraint on the output of a sequence."""

from typing import Protocol


class ConstraintViolated(ValueError):
    """A token does not fit the constraint; the message names it."""


class ConstraintExhausted(Exception):
    """The next mask cannot be computed: the constraint asks for too much; the message says of what."""


class Constraint(Protocol):
    """A language that the generated tokens must belong to. Its state is a pure function of the tokens pushed, and lives nowhere else."""

    @property
    def is_ready(self) -> bool:
        """Whether `mask` can answer at once; the engine is woken when it can."""

    def push(self, token_id: int) -> None:
        """Advance by the next generated token; raises ConstraintViolated, or lets the next mask do so."""

    def mask(self) -> bytes:
        """What may come next: one bit per token id, lowest bit first, ceil(vocab_size / 8) bytes; a set bit allows the token.

        End tokens are allowed exactly where the output is complete. Raises ConstraintExhausted.
        """
