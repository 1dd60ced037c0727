"""C++ kernels of the operators that torch is slow at on a CPU; `python -m kernels.cpu.build` compiles them."""
