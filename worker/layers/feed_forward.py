"""What a decoder layer needs to know of its feed-forward part, whichever kind it is."""

from typing import Protocol

from torch import Tensor

from worker.checkpoint.weights import Weights


class FeedForward(Protocol):
    """Normalised rows [T, hidden] in, their update [T, hidden] out."""

    @property
    def is_capturable(self) -> bool:
        """Whether it runs without a word to the host in between."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Each row independent of the others."""


class FeedForwardShape(Protocol):
    """The kind and sizes of a feed-forward part, as config.json gives them."""

    def load(self, weights: Weights, prefix: str) -> FeedForward:
        """The part whose tensors begin with `prefix`."""
