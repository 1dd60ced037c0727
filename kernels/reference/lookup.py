"""From token ids to rows, and from logits back to token ids."""

import torch
from torch import Tensor


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids [T], table [V, H] -> [T, H]."""
    return torch.embedding(table, ids)


def argmax(logits: Tensor) -> Tensor:
    """logits [S, V] -> [S] int64, the lowest id where the greatest value occurs more than once."""
    return torch.argmax(logits, dim=-1)
