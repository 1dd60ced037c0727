"""Checkpoints in the layout of compressed-tensors, made of others: what quantizing tools publish."""

import json
from pathlib import Path
from typing import Any

import torch
from harness.checkpoints import write_json
from safetensors.torch import load_file, save_file
from torch import Tensor

ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True, "observer": None}


def quantization_config(bits: int, group: int = 32, symmetric: bool = True) -> dict[str, Any]:
    """quantization_config of a checkpoint whose linear layers, the head and routers apart, are quantized."""
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, "observer": "minmax", "actorder": None}
    weights |= {"strategy": "channel", "group_size": None} if bits == 8 else {"strategy": "group", "group_size": group}
    activations = ACTIVATIONS if bits == 8 else None
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if bits == 8 else "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
        },
    }


def quantize_checkpoint(directory: Path, bits: int, group: int = 32, symmetric: bool = True) -> dict[str, Tensor]:
    """Quantize a checkpoint in place; returns what its matrices are now, by name, in float32."""
    file, exact = directory / "model.safetensors", {}
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module, weight = name.removesuffix(".weight"), tensors.pop(name).float()
        stored, exact[name] = _quantize_int8(weight) if bits == 8 else _quantize_int4(weight, group, symmetric)
        tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", config | {"quantization_config": quantization_config(bits, group, symmetric)})
    return exact


def _quantize_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    levels = torch.round(weight / scale.float()).clamp(-128, 127)
    return {"weight": levels.to(torch.int8), "weight_scale": scale}, levels * scale.float()


def _quantize_int4(weight: Tensor, group: int, symmetric: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Levels -8 .. 7 around a zero point of -8 .. 7, stored plus 8."""
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(2, keepdim=True).clamp_max(0), groups.amax(2, keepdim=True).clamp_min(0)
    scale = (groups.abs().amax(2, keepdim=True) / 7.5 if symmetric else (high - low) / 15).bfloat16()
    zero = torch.zeros_like(low) if symmetric else torch.round(-8 - low / scale.float()).clamp(-8, 7)
    levels = torch.round(groups / scale.float() + zero).clamp(-8, 7)
    stored = {
        "weight_packed": _pack_columns(levels.flatten(1)),
        "weight_scale": scale[:, :, 0].contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        stored["weight_zero_point"] = _pack_columns(zero[:, :, 0].T).T.contiguous()
    return stored, ((levels - zero) * scale.float()).flatten(1)


def _pack_columns(levels: Tensor) -> Tensor:
    """[N, K] in -8 .. 7 -> [N, K / 8 rounded up] int32, the first level of eight in the lowest bits."""
    padded = torch.nn.functional.pad((levels + 8).long(), (0, -levels.shape[1] % 8)).unflatten(1, (-1, 8))
    words = (padded << torch.arange(0, 32, 4)).sum(2)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
