"""The identity of everything that decides the bits of a result."""

import functools
import hashlib
from pathlib import Path

import torch

from kernels import ops
from kernels.cpu import capabilities, products
from pypto_serving.wire import contract
from worker.npu_software import NpuKernels, cann_version

# Decide how work is divided, not which instructions run.
_COUNTS = ("num_logical_cores", "num_physical_cores", "num_sockets")

_ROOT = Path(__file__).parents[1]
# What computes, relative to the root of the source tree; the compiled kernels carry a digest of their own.
_CODE = ("kernels", "worker/checkpoint", "worker/layers", "worker/models", "worker/sampling")
_NPU_CODE = ("kernels/pypto", "kernels/cann", "kernels/scratch.py")  # decides what an NPU computes, and nothing else
_OTHER_CODE = ("kernels/testing",)


def numerics_id(dtype: torch.dtype, device: torch.device, quantization: str = "", npu_kernels: NpuKernels | None = None) -> str:
    """Two workers with the same id and the same weights compute the same bits.

    `quantization` says how matrices are quantized, in one word, and is "" when they are not: the id begins with "bfloat16-int8", say.
    `npu_kernels` serve the device, if it is an NPU.

    For example "bfloat16/torch-2.13.0/cpu-avx512/brgemm-avx512_bf16/cpp-avx512-49e44adc7f84-9f32/bits-1f0c22ab/code-0f3e9a41".
    """
    if device.type == "cpu":
        hardware = _describe_cpu(dtype)
    else:
        name = getattr(torch, device.type).get_device_properties(device).name.lower().replace(" ", "-")
        hardware = (f"{device.type}-{name}", ops.kernel_set(device.type, npu_kernels))
        if device.type == "npu":  # whose compiler and operators both sets need
            hardware += (f"cann-{cann_version()}",)
    parts = (
        "-".join(filter(None, (str(dtype).removeprefix("torch."), quantization))),
        f"torch-{torch.__version__}",
        *hardware,
        f"code-{_digest_of_code(device.type)}",
    )
    return "/".join(parts)


def _describe_cpu(dtype: torch.dtype) -> tuple[str, ...]:
    """What torch's own functions run on (rope tables, softmax of the sampler), what products run on, our own kernels, and a sample.

    Cores, caches and makers of processors do not matter, except to torch's own products, whose library picks blocks by them.
    """
    path = products.path(dtype)
    if path == "torch":
        known = sorted((name, value) for name, value in capabilities.of_this_cpu().items() if name not in _COUNTS)
        path = f"torch-{hashlib.sha256(repr(known).encode()).hexdigest()[:8]}"
    return (
        f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}",
        path,
        ops.kernel_set(),
        f"bits-{_digest_of_bits(dtype)}",
    )


@functools.cache
def _digest_of_bits(dtype: torch.dtype) -> str:
    """Of results themselves, so that no setting of a library that this file does not know of can hide behind an equal id.

    Functions of libraries that choose their code by the processor, and a product on whose sums every change of order shows.
    """
    numbers = products.cancelling_rows(3, 4098, 1)
    results = [
        *(function(numbers) for function in (torch.cos, torch.sin, torch.exp, torch.sigmoid)),
        torch.log(numbers.abs() + 1),
        10000.0 ** (numbers / 8),
        torch.softmax(numbers, dim=-1),
        torch.cumsum(numbers, dim=-1),
        products.sample(dtype),
    ]
    digest = hashlib.sha256()
    for result in results:
        digest.update(result.numpy().tobytes())
    return digest.hexdigest()[:8]


@functools.cache  # what runs is what was imported, whatever becomes of the files
def _digest_of_code(device_type: str) -> str:
    """A sequence must not go on under another version of the code that computed its tokens."""
    digest = hashlib.sha256(repr(contract.MIN_TEMPERATURE).encode())  # all that the sampler takes from elsewhere
    for file in _code_of(device_type):
        digest.update((_ROOT / file).read_bytes())
    return digest.hexdigest()[:8]


def _code_of(device_type: str) -> list[Path]:
    """The files that compute on a kind of device, below the root of the source tree."""
    left_out = _OTHER_CODE if device_type == "npu" else (*_OTHER_CODE, *_NPU_CODE)
    files = (file.relative_to(_ROOT) for folder in _CODE for file in (_ROOT / folder).rglob("*.py"))
    return sorted(file for file in files if not any(file.is_relative_to(path) for path in left_out))
