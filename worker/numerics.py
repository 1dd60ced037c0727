"""The identity of everything that decides the bits of a result."""

import functools
import hashlib
from pathlib import Path

import torch

from kernels import ops

# Decide how work is divided, which the row tile makes irrelevant, not which instructions run.
_COUNTS = ("num_logical_cores", "num_physical_cores", "num_sockets")

# What computes, relative to the root of the source tree; the compiled kernels carry a digest of their own.
_CODE = ("kernels", "worker/layers", "worker/models", "worker/sampling")
_NPU_CODE = ("kernels/pypto",)  # computes on an NPU only
_OTHER_CODE = ("kernels/testing",)


def numerics_id(dtype: torch.dtype, device: torch.device, row_tile: int) -> str:
    """Two workers with the same id and the same weights compute the same bits.

    For example "bfloat16/torch-2.13.0/cpu-avx512-1f0c22ab/tile-2/torch/code-0f3e9a41".
    """
    parts = (
        str(dtype).removeprefix("torch."),
        f"torch-{torch.__version__}",
        _describe_device(device),
        f"tile-{row_tile}",
        ops.kernel_set(device.type),
        f"code-{_digest_of_code(device.type)}",
    )
    return "/".join(parts)


def _describe_device(device: torch.device) -> str:
    if device.type == "cpu":
        return f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}-{_digest_of_cpu()}"
    properties = getattr(torch, device.type).get_device_properties(device)
    return f"{device.type}-{properties.name.lower().replace(' ', '-')}"


def _digest_of_cpu() -> str:
    """The math libraries choose kernels and blocking by instruction sets, vendor and cache sizes."""
    capabilities = sorted((name, value) for name, value in torch.cpu.get_capabilities().items() if name not in _COUNTS)
    return hashlib.sha256(repr(capabilities).encode()).hexdigest()[:8]


@functools.cache  # what runs is what was imported, whatever becomes of the files
def _digest_of_code(device_type: str) -> str:
    """A sequence must not go on under another version of the code that computed its tokens."""
    root = Path(__file__).parents[1]
    left_out = [root / folder for folder in (_OTHER_CODE if device_type == "npu" else (*_OTHER_CODE, *_NPU_CODE))]
    files = (file for folder in _CODE for file in (root / folder).rglob("*.py"))
    digest = hashlib.sha256()
    for file in sorted(file for file in files if not any(file.is_relative_to(folder) for folder in left_out)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]
