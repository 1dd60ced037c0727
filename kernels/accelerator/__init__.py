"""Torch implementations for accelerators, in place of those that are not batch-invariant there, or that ask the host in between.

An accelerator's libraries pick kernels, and with them the order of additions, by the number of rows. Here sums are either pairwise, the
same for every row wherever it stands, or matrix products of one fixed shape: tiles written in Triton where there is Triton (imported when
the first product of a CUDA tensor asks for it), else calls of one number of rows. Nothing waits for the device, so that all
(but the experts without Triton) can be captured into a graph. They serve CUDA, and on an NPU the calls that PyPTO kernels do not take.
"""
