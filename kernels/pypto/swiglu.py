"""The gated activation of the feed-forward part."""

import pypto
from torch import Tensor

from kernels.pypto.tiles import swiglu_tiles


@pypto.frontend.jit()
def swiglu_kernel(
    gate_up: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    loop_rows: int,
    task_rows: int,
    task_columns: int,
):
    rows = out.shape[0]
    width = out.shape[1]
    pypto.set_vec_tile_shapes(task_rows, task_columns)
    for index in pypto.loop((rows + loop_rows - 1) // loop_rows, name="TILES", idx_name="index"):
        start = index * loop_rows
        valid = pypto.min(loop_rows, rows - start)
        gate = pypto.cast(pypto.view(gate_up, [loop_rows, width], [start, 0], valid_shape=[valid, width]), pypto.DT_FP32)
        up = pypto.cast(pypto.view(gate_up, [loop_rows, width], [start, width], valid_shape=[valid, width]), pypto.DT_FP32)
        # pypto.sigmoid fails on a tile that is not full.
        silu = pypto.cast(pypto.cast(gate / (pypto.exp(gate * -1.0) + 1.0), pypto.DT_BF16), pypto.DT_FP32)
        pypto.assemble(pypto.cast(silu * up, pypto.DT_BF16), [start, 0], out)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, as kernels.ops.swiglu."""
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    swiglu_kernel(gate_up, out, *swiglu_tiles(*out.shape))
    return out
