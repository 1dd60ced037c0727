"""Tokens that were drawn and that the host has not read."""

from dataclasses import dataclass

from torch import Tensor

from worker.lanes.step_rules import Ints
from worker.transfers import to_device


@dataclass(frozen=True, slots=True)
class UnreadTokens:
    """Row `rows[i]` has token `token_ids[sources[i]]`, which only the device knows."""

    rows: Ints
    sources: Ints
    token_ids: Tensor  # int64, on the device

    def put(self, column: Tensor) -> None:
        """Write the tokens to their rows of `column`."""
        device = self.token_ids.device
        column[to_device(self.rows, device)] = self.token_ids[to_device(self.sources, device)]
