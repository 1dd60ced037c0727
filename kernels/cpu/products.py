"""How products of matrices are computed on a CPU, and whether a row of them depends on the others.

    brgemm   the micro-kernel that torch exports of oneDNN, one call over the whole depth: where it has AMX, and for fp32
    loops    C++ of our own, which adds in order of depth: elsewhere, being as fast with many rows and faster with few, and where brgemm
             has no kernel or the check below finds it wanting
    torch    torch's own products, without the C++ kernels: rows may depend on the others of their batch

The environment variable PYPTO_LINEARS, one of these three names, forces one.
"""

import functools
import logging
import os
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops
from kernels.cpu import capabilities
from kernels.cpu.extension import SettingRefused

_log = logging.getLogger(__name__)

Method = Literal["brgemm", "loops", "torch"]
METHODS: tuple[Method, ...] = ("brgemm", "loops", "torch")

_CHECK_OUTPUTS, _CHECK_DEPTH, _CHECK_ROWS = 64, 1536, 40
_CHECK_COUNTS = (1, 2, 3, 7, 16, 31, 33)  # of rows

# What oneDNN may use at most, by the values of ONEDNN_MAX_CPU_ISA that say less than everything; the others of its names are higher.
_LIMITS = {
    "sse41": 0,
    "avx": 0,
    "avx2": 1,
    "avx2_vnni": 1,
    "avx2_vnni_2": 1,
    "avx512_core": 2,
    "avx512_core_vnni": 2,
    "avx512_core_bf16": 3,
    "avx512_core_fp16": 4,
    "avx10_1_512": 4,
    "avx512_core_amx": 5,
    "avx10_1_512_amx": 5,
}
_NO_LIMIT = 6
# brgemm's kernels by type, best first: name, least limit, and what a CPU must have, in the words of kernels.cpu.capabilities.
_AVX512 = ("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl")
_KERNELS: dict[torch.dtype, tuple[tuple[str, int, tuple[str, ...]], ...]] = {
    torch.float32: (("avx512", 2, _AVX512), ("avx2", 1, ("avx2", "fma3"))),
    torch.bfloat16: (
        ("amx", 5, ("amx_tile", "amx_bf16")),
        ("avx512_bf16", 3, (*_AVX512, "avx512_vnni", "avx512_bf16")),
        ("avx512", 2, _AVX512),
    ),
    torch.float16: (("amx_fp16", 6, ("amx_tile", "amx_fp16")),),
    torch.uint8: (("amx", 5, ("amx_tile", "amx_int8")),),  # with weights of int8; elsewhere loops of our own are as fast
}


@functools.cache
def method(dtype: torch.dtype) -> Method:
    """The way for weights of a type, found once in some milliseconds; says in one line of the log what is not as it could be.

    Raises SettingRefused when PYPTO_LINEARS names none.
    """
    forced = os.environ.get("PYPTO_LINEARS", "")
    if forced not in ("", *METHODS):
        raise SettingRefused(f"PYPTO_LINEARS={forced}: must be one of {', '.join(METHODS)}")
    if forced == "torch":
        _log.warning("PYPTO_LINEARS=torch: tokens may depend on the other rows of a batch")
    if forced == "torch" or ops.kernel_set() == "torch":
        return "torch"
    kernel = brgemm_kernel(dtype)
    if forced == "loops" or kernel is None or not (forced == "brgemm" or dtype == torch.float32 or kernel.startswith("amx")):
        return "loops"
    fault = _fault_of_brgemm(dtype)
    if fault is None:
        return "brgemm"
    _log.warning("products of %s run in loops of our own: %s", dtype, fault)
    return "loops"


def path(dtype: torch.dtype) -> str:
    """What computes products of a type, for the numerics id: for example "brgemm-avx512_bf16", "loops"."""
    chosen = method(dtype)
    return f"brgemm-{brgemm_kernel(dtype)}" if chosen == "brgemm" else chosen


def brgemm_kernel(dtype: torch.dtype) -> str | None:
    """The instructions that oneDNN's micro-kernel takes on this CPU under its environment; None: it has no kernel for the type."""
    if not (torch._C._has_mkldnn and torch.backends.mkldnn.enabled):
        return None
    limit = _LIMITS.get((os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "").lower(), _NO_LIMIT)
    has = capabilities.of_this_cpu()
    kernels = _KERNELS.get(dtype, ())
    return next((name for name, least, needs in kernels if limit >= least and all(has.get(need) for need in needs)), None)


def sample(dtype: torch.dtype) -> Tensor:
    """Some products in fp32 of the type's method, on sums that cancel."""
    rows, chosen = _check_rows(dtype), method(dtype)
    return F.linear(rows, _check_weight(dtype)).float() if chosen == "torch" else _sums(rows, chosen == "brgemm")


def cancelling_rows(num_rows: int, depth: int, sign: int) -> Tensor:
    """Rows [num_rows, depth] fp32, the same on every machine, whose second half repeats the first one shuffled, times `sign`.

    The products of two such rows, of opposite signs, add up to nothing but rounding errors. These show any change in the order of
    the additions, which rounding the result of an ordinary sum to bf16 nearly always hides. `depth` is even.
    """
    places = torch.arange(num_rows * depth // 2)
    magnitudes = torch.ldexp(torch.ones(len(places)), -13 - places * 7919 % 13)  # many: else sums would be exact
    half = ((places * 2654435761 % 65521 - 32760) * magnitudes).view(num_rows, -1)
    order = torch.argsort(torch.arange(depth // 2) * 40503 % 65521)
    return torch.cat((half, sign * half[:, order]), dim=1)


def _fault_of_brgemm(dtype: torch.dtype) -> str | None:
    """What is wrong with brgemm, if anything: it raises, or gives a row other bits among other numbers of rows."""
    rows = _check_rows(dtype)
    try:
        whole = _sums(rows, True)
        equal = all(
            torch.equal(_sums(rows[:count], True), whole[:count]) and torch.equal(_sums(rows[-count:], True), whole[-count:])
            for count in _CHECK_COUNTS
        )
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if equal else "brgemm gives a row other bits among other numbers of rows"


def _sums(rows: Tensor, use_brgemm: bool) -> Tensor:
    panels = torch.ops.pypto_serving.pack_weight(_check_weight(rows.dtype), False)
    return torch.ops.pypto_serving.packed_linear(rows, panels, None, _CHECK_OUTPUTS, "float32", use_brgemm)  # type: ignore[no-any-return]


def _check_rows(dtype: torch.dtype) -> Tensor:
    return cancelling_rows(_CHECK_ROWS, _CHECK_DEPTH, 1).to(dtype)


def _check_weight(dtype: torch.dtype) -> Tensor:
    return cancelling_rows(_CHECK_OUTPUTS, _CHECK_DEPTH, -1).to(dtype)
