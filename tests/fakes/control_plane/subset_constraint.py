"""Constraints over the vocabulary of the fake worker."""

from fakes.worker.strict_worker import VOCAB_SIZE, identify

from control_plane.core.constraint import ConstraintExhausted, ConstraintViolated


class SubsetConstraint:
    """Allows about half of the tokens, others after each token; fails with an error of ours after `broken_at` tokens, is too complex after
    `exhausted_at`, and allows none after `empty_at`.
    """

    def __init__(self, salt: int = 0, broken_at: int | None = None, empty_at: int | None = None, exhausted_at: int | None = None) -> None:
        self.token_ids: list[int] = []
        self._identity = salt
        self._broken_at = broken_at
        self._empty_at = empty_at
        self._exhausted_at = exhausted_at
        self.is_ready = True

    def push(self, token_id: int) -> None:
        if not self._allows(token_id):
            raise ConstraintViolated(f"token {token_id} is not allowed")
        self.token_ids.append(token_id)
        self._identity = identify(self._identity, token_id)

    def mask(self) -> bytes:
        if len(self.token_ids) == self._broken_at:
            raise RuntimeError("no mask")
        if len(self.token_ids) == self._exhausted_at:
            raise ConstraintExhausted("too complex: 501 items")
        bits = sum(1 << token_id for token_id in range(VOCAB_SIZE) if self._allows(token_id))
        return bits.to_bytes(-(-VOCAB_SIZE // 8), "little")

    def _allows(self, token_id: int) -> bool:
        return len(self.token_ids) != self._empty_at and bool(identify(self._identity, token_id) >> 7 & 1)
