"""Runs PyPTO kernels without an NPU: interpreted on the CPU, and priced by the cost model. For tests and benchmarks only."""
