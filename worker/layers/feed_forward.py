"""The feed-forward part of a decoder layer: what a layer needs to know of it, and the dense kind, down(silu(gate(x)) * up(x))."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from worker.checkpoint.config_fields import ConfigFields
from worker.checkpoint.weights import Linear, Weights


class FeedForward(Protocol):
    """Normalised rows [T, hidden] in, their update [T, hidden] out."""

    @property
    def is_capturable(self) -> bool:
        """Whether it runs without synchronizing with the host."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Each row independent of the others."""


class FeedForwardShape(Protocol):
    """The kind and sizes of a feed-forward part, as config.json gives them."""

    def load(self, weights: Weights, prefix: str) -> FeedForward:
        """The part whose tensors begin with `prefix`."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """Gate and up are one matrix, whose product comes activated."""

    gate_up: Linear
    down: Linear

    @property
    def is_capturable(self) -> bool:
        """Always: its shapes depend on the number of rows alone."""
        return True

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self.gate_up(rows))


@dataclass(frozen=True, slots=True)
class MlpShape:
    """Sizes of a dense feed-forward part."""

    hidden_size: int
    inner_size: int
    bias: bool = False

    def load(self, weights: Weights, prefix: str) -> Mlp:
        """The part whose tensors begin with `prefix`."""
        hidden, inner = self.hidden_size, self.inner_size
        gate_up = weights.linear([prefix + "gate_proj", prefix + "up_proj"], [inner, inner], hidden, bias=self.bias, gated=True)
        return Mlp(gate_up, weights.linear([prefix + "down_proj"], [hidden], inner, bias=self.bias))


def read_mlp_shape(config: ConfigFields, bias: bool = False) -> MlpShape:
    """The sizes from config.json; refuses another activation than silu, whose other name is swish."""
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.refusal("hidden_act", "'silu'")
    return MlpShape(config.integer("hidden_size"), config.integer("intermediate_size"), bias)
