"""A worker with a defect: it dies when it computes a certain token. Run as `python -m chaos.poisoned_worker`, with the worker's flags."""

import os
import sys
from typing import Any

#: The token; nothing draws it.
POISON = 1002
EXIT_CODE = 9


def _main() -> int:
    from worker.__main__ import main
    from worker.models.decoder import Decoder

    forward = Decoder.forward

    def die_of_poison(self: Decoder, batch: Any, cache: Any) -> Any:
        if bool((batch.token_ids == POISON).any()):
            os._exit(EXIT_CODE)
        return forward(self, batch, cache)

    Decoder.forward = die_of_poison
    return main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(_main())
