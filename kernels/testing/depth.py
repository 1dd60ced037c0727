"""How far a kernel is compiled before it is interpreted."""

import enum


class Depth(enum.Enum):
    """What of a kernel is interpreted."""

    TENSOR_GRAPH = "tensor_graph"  # what the kernel says
    ALL_PASSES = "all_passes"  # also what every compiler pass made of it; dear
