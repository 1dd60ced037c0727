"""The sequences that get a token in a step: most steps of a worker bring one for the same ones as the step before."""

from control_plane.core.sequence import Sequence


class SampledBatch:
    """Appends tokens by column. It is valid while its sequences stay in their lanes, and get a token together or not at all."""

    def __init__(self, sequences: list[Sequence], numerics_id: str) -> None:
        self.sequences = sequences
        self.lanes = [sequence.lane for sequence in sequences]
        self._known = [sequence.token_ids for sequence in sequences]
        self._end_token_ids = frozenset[int]().union(*{sequence.end_token_ids for sequence in sequences})
        self._num_left = min((sequence.final_length - len(sequence.token_ids) for sequence in sequences), default=0)  # until one is full
        self._numerics_id: str | None = numerics_id  # None: all of them have it

    def append(self, token_ids: list[int]) -> list[tuple[Sequence, int | None]]:
        """Append a token to each sequence; returns those that have ended, with an end token that was not excluded, or by their length."""
        for known, token_id in zip(self._known, token_ids, strict=True):
            known.append(token_id)
        if self._numerics_id:
            for sequence in self.sequences:
                sequence.numerics_id = self._numerics_id
            self._numerics_id = None
        self._num_left -= 1
        if self._num_left > 0 and self._end_token_ids.isdisjoint(token_ids):
            return []
        return self._ended(token_ids)

    def _ended(self, token_ids: list[int]) -> list[tuple[Sequence, int | None]]:
        ended: list[tuple[Sequence, int | None]] = []
        for sequence, token_id in zip(self.sequences, token_ids, strict=True):
            length = len(sequence.token_ids)
            if token_id in sequence.end_token_ids and length > sequence.min_length:
                ended.append((sequence, token_id))
            elif length == sequence.final_length:
                ended.append((sequence, None))
        return ended
