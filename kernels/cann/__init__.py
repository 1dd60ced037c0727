"""The operators by those that come with CANN, as torch-npu 2.9 has them (`torch.ops.npu`): a second set of kernels for an NPU.

They show what PyPTO's kernels have to beat, and serve where PyPTO does not run. Their libraries pick tiles by the whole shape of a call:
what a row gets may depend on the others of its batch.
"""
