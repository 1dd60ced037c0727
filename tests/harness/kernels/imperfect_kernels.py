"""Kernels with faults that the harness has to show."""

import pypto


@pypto.frontend.jit()
def copy_kernel(
    x: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    out: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    written: int,
):
    """Copies the first rows only."""
    pypto.set_vec_tile_shapes(1, 32)
    for row in pypto.loop(written, name="ROWS", idx_name="row"):
        pypto.assemble(pypto.clone(pypto.view(x, [1, 32], [row, 0])), [row, 0], out)


@pypto.frontend.jit()
def root_kernel(
    x: pypto.Tensor([...], pypto.DT_FP32),
    out: pypto.Tensor([...], pypto.DT_FP32),
):
    """The square root of what may be negative."""
    pypto.set_vec_tile_shapes(8, 32)
    out[:] = pypto.sqrt(x)


@pypto.frontend.jit()
def oversized_kernel(
    x: pypto.Tensor([...], pypto.DT_FP32),
    out: pypto.Tensor([...], pypto.DT_FP32),
):
    """Tiles of 1 MiB, more than a vector core holds."""
    pypto.set_vec_tile_shapes(256, 1024)
    out[:] = x + 1.0
