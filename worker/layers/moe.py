"""The sparse feed-forward part: a router sends every row to a few experts."""

from dataclasses import dataclass

from torch import Tensor

from kernels import ops
from kernels.linear import PackedExperts, PackedLinear
from kernels.quantized import QuantizedExperts
from worker.checkpoint.config_fields import ConfigFields, ModelRefused
from worker.checkpoint.weights import Weights


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Sizes and routing rule of a sparse feed-forward part."""

    hidden_size: int
    inner_size: int
    num_experts: int
    top_k: int
    renormalize: bool  # whether the weights of the chosen experts are scaled to sum 1

    def load(self, weights: Weights, prefix: str) -> "Moe":
        """The part whose tensors begin with `prefix`; experts are stored one by one, or fused as [experts, rows, columns]."""
        router = weights.tensor(prefix + "gate.weight", self.num_experts, self.hidden_size)
        return Moe(self, PackedLinear(router, None), self._load_experts(weights, prefix + "experts."))

    def _load_experts(self, weights: Weights, prefix: str) -> PackedExperts | QuantizedExperts:
        fused = prefix + "gate_up_proj"
        is_fused = fused in weights.checkpoint
        if not weights.is_quantized([prefix + "0.down_proj"]):
            experts = PackedExperts(*(self._load_fused if is_fused else self._load_each)(weights, prefix), self.num_experts)
            weights.checkpoint.release()
            return experts
        if is_fused:
            directory, only = weights.checkpoint.config.path.parent, f"{weights.quantization} is for experts that are stored one by one"
            raise ModelRefused(f"{directory}: tensor {fused} holds all experts; {only}")
        return self._load_quantized(weights, prefix)

    def _load_quantized(self, weights: Weights, prefix: str) -> QuantizedExperts:
        inner, hidden = self.inner_size, self.hidden_size
        modules = [f"{prefix}{expert}." for expert in range(self.num_experts)]
        return QuantizedExperts(
            [weights.linear([name + "gate_proj", name + "up_proj"], [inner, inner], hidden, gated=True) for name in modules],
            [weights.linear([name + "down_proj"], [hidden], inner) for name in modules],
        )

    def _load_fused(self, weights: Weights, prefix: str) -> tuple[list[Tensor], list[Tensor]]:
        count, inner, hidden = self.num_experts, self.inner_size, self.hidden_size
        gate_up = weights.parts([prefix + "gate_up_proj"], [count], 2 * inner, hidden)
        return gate_up, weights.parts([prefix + "down_proj"], [count], hidden, inner)

    def _load_each(self, weights: Weights, prefix: str) -> tuple[list[Tensor], list[Tensor]]:
        experts, inner, hidden = range(self.num_experts), self.inner_size, self.hidden_size
        names = [f"{prefix}{expert}.{part}_proj.weight" for expert in experts for part in ("gate", "up")]
        gate_up = weights.parts(names, [inner] * len(names), hidden)
        return gate_up, weights.parts([f"{prefix}{expert}.down_proj.weight" for expert in experts], [hidden] * len(experts), inner)


@dataclass(frozen=True, slots=True)
class Moe:
    """Router and experts of a layer."""

    shape: MoeShape
    router: PackedLinear
    experts: PackedExperts | QuantizedExperts

    @property
    def is_capturable(self) -> bool:
        """With kernels that find out on the device how many rows each expert has."""
        return self.experts.is_capturable

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        weights, expert_ids = ops.moe_route(self.router(rows), self.shape.top_k, self.shape.renormalize, "softmax")
        return self.experts(rows, weights, expert_ids)


def read_moe_shape(config: ConfigFields) -> MoeShape:
    """The sizes from config.json."""
    num_experts = config.integer("num_experts" if "num_experts" in config else "num_local_experts")
    top_k = config.integer("num_experts_per_tok")
    if top_k > num_experts:
        raise config.refusal("num_experts_per_tok", f"at most the {num_experts} experts")
    renormalize = config.flag("norm_topk_prob", default=False)
    return MoeShape(config.integer("hidden_size"), config.integer("moe_intermediate_size"), num_experts, top_k, renormalize)
