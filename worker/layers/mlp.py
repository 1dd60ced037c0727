"""The dense feed-forward part: down(silu(gate(x)) * up(x))."""

from dataclasses import dataclass

from torch import Tensor

from kernels.linear import PackedLinear
from worker.checkpoint.config_fields import ConfigFields
from worker.checkpoint.weights import Weights


@dataclass(frozen=True, slots=True)
class Mlp:
    """Gate and up are one matrix, whose product comes activated."""

    gate_up: PackedLinear
    down: PackedLinear

    @property
    def is_capturable(self) -> bool:
        """Always."""
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
        names, rows = [prefix + "gate_proj.", prefix + "up_proj."], [self.inner_size, self.inner_size]
        gate_up = weights.stacked([name + "weight" for name in names], rows, self.hidden_size)
        gate_up_bias = weights.stacked([name + "bias" for name in names], rows) if self.bias else None
        down = weights.tensor(prefix + "down_proj.weight", self.hidden_size, self.inner_size)
        down_bias = weights.tensor(prefix + "down_proj.bias", self.hidden_size) if self.bias else None
        return Mlp(PackedLinear(gate_up, gate_up_bias, gated=True), PackedLinear(down, down_bias))


def read_mlp_shape(config: ConfigFields, bias: bool = False) -> MlpShape:
    """The sizes from config.json; refuses another activation than silu."""
    if config.text("hidden_act", "silu") != "silu":
        raise config.refusal("hidden_act", "'silu'")
    return MlpShape(config.integer("hidden_size"), config.integer("intermediate_size"), bias)
