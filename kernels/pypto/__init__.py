"""The operators as PyPTO kernels for Ascend NPUs. Imported by what drives an NPU, and by `kernels.testing`, only."""
