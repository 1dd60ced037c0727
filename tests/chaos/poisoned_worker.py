"""A worker with a defect: it dies when it computes a certain token. Run as `python -m chaos.poisoned_worker`, with the worker's flags."""

import os
import sys

#: The token; nothing draws it.
POISON = 1002
EXIT_CODE = 9


def _main() -> int:
    from torch import Tensor

    from kernels import ops
    from worker.__main__ import main

    embedding = ops.embedding

    def deadly(ids: Tensor, *others: Tensor) -> Tensor:
        if bool((ids == POISON).any()):
            os._exit(EXIT_CODE)
        return embedding(ids, *others)

    ops.embedding = deadly
    return main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(_main())
