"""Re-expresses a Llama checkpoint as Qwen3 or Qwen3-MoE, exactly up to rounding, without training: real text for those families.

Qwen3 is Llama with a norm on each query and key head:  norm(a q) = a q / sqrt(a^2 mean(q^2) + eps) * w.  With a = 2^-27 the mean
vanishes beside eps, so the norm is the linear map a / sqrt(eps) * w, which is the identity for w = sqrt(eps) / a.

In Qwen3-MoE every expert is the dense feed-forward part with its inner units in another order. The weights of the chosen experts sum to
1, so their sum is the dense part, whatever the (random) router chooses.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_SCALE = 2.0**-27
_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of every layer."""

    count: int
    top_k: int


def to_qwen3(source: Path, target: Path, experts: Experts | None = None) -> Path:
    """Write the Llama model in `source` (one safetensors file) to `target` as Qwen3, or as Qwen3-MoE with these experts."""
    config = json.loads((source / "config.json").read_bytes())
    target.mkdir(parents=True, exist_ok=True)
    save_file(_tensors(source, config, experts), target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(_config(config, experts), indent=2) + "\n")
    for name in _COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    return target


def _config(config: dict[str, Any], experts: Experts | None) -> dict[str, Any]:
    qwen3 = {name: value for name, value in config.items() if name != "mlp_bias"}
    if experts is None:
        return qwen3 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    sizes = {"num_experts": experts.count, "num_experts_per_tok": experts.top_k, "moe_intermediate_size": config["intermediate_size"]}
    rules = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return qwen3 | sizes | rules | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}


def _tensors(source: Path, config: dict[str, Any], experts: Experts | None) -> dict[str, Tensor]:
    with safe_open(source / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    for name in tensors:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = tensors[name] * _SCALE
    generator = torch.Generator().manual_seed(0)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= _head_norms(prefix + "self_attn.", config, tensors["model.norm.weight"].dtype)
        if experts is not None:
            dense = {part: tensors.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up", "down")}
            tensors |= _moe(prefix + "mlp.", dense, experts.count, generator)
    return tensors


def _head_norms(prefix: str, config: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    weight = config["rms_norm_eps"] ** 0.5 / _SCALE
    return {f"{prefix}{part}_norm.weight": torch.full((config["head_dim"],), weight, dtype=dtype) for part in "qk"}


def _moe(prefix: str, dense: dict[str, Tensor], num_experts: int, generator: torch.Generator) -> dict[str, Tensor]:
    inner, hidden = dense["gate"].shape
    router = 0.05 * torch.randn(num_experts, hidden, generator=generator)
    tensors = {prefix + "gate.weight": router.to(dense["gate"].dtype)}
    for expert in range(num_experts):
        order = torch.randperm(inner, generator=generator)
        parts = {"gate": dense["gate"][order], "up": dense["up"][order], "down": dense["down"][:, order].contiguous()}
        tensors |= {f"{prefix}experts.{expert}.{part}_proj.weight": values for part, values in parts.items()}
    return tensors


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Re-express a Llama checkpoint as Qwen3 or Qwen3-MoE.")
    parser.add_argument("source", type=Path, help="directory of the Llama model")
    parser.add_argument("target", type=Path, help="directory to write")
    parser.add_argument("--experts", type=int, default=0, help="experts per layer (default: 0, Qwen3 without experts)")
    parser.add_argument("--top-k", type=int, default=2, help="experts that a token is sent to (default: 2)")
    arguments = parser.parse_args()
    experts = Experts(arguments.experts, arguments.top_k) if arguments.experts else None
    print(to_qwen3(arguments.source, arguments.target, experts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
