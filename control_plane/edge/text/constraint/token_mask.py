"""Masks over the vocabulary: one bit per token id, lowest bit first."""

from collections.abc import Iterable


class EndTokens:
    """The model's end tokens as bits of a mask. Immutable; shared by all sequences."""

    __slots__ = ("_bits", "_ids", "nothing")

    def __init__(self, token_ids: Iterable[int], vocab_size: int) -> None:
        self._ids = frozenset(token_ids)
        self.nothing = bytes((vocab_size + 7) // 8)  # a mask that allows no token
        self._bits: dict[int, int] = {}  # by byte of a mask
        for token_id in self._ids:
            self._bits[token_id // 8] = self._bits.get(token_id // 8, 0) | 1 << token_id % 8

    def __contains__(self, token_id: int) -> bool:
        return token_id in self._ids

    def put_into(self, mask: bytes, are_allowed: bool) -> bytes:
        """The mask, cut to the size of the vocabulary, with end tokens allowed or not."""
        changed = bytearray(mask[: len(self.nothing)])
        for index, bits in self._bits.items():
            changed[index] = changed[index] & ~bits | (bits if are_allowed else 0)
        return bytes(changed)
