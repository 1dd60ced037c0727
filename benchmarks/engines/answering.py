"""The loop of an engine's process. Only the standard library is imported here: peers run it in their own virtual environments.

The process prints "ready", then answers every line of standard input, `[streams, prompt_tokens, max_tokens]`, with the seconds that the
generation took, prefill included.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence

#: Generates exactly `max_tokens` greedy tokens after each of the prompts, which begin together.
Generate = Callable[[Sequence[list[int]], int], None]


def answer(generate: Generate, vocab_size: int) -> None:
    """Serve the lines of standard input until it ends; every prompt is drawn anew, so that no prefix cache helps."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints, by whatever way, stands in nobody's way
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        streams, prompt_tokens, max_tokens = json.loads(line)
        prompts = [random.choices(range(vocab_size), k=prompt_tokens) for _ in range(streams)]
        begun = time.perf_counter()
        generate(prompts, max_tokens)
        print(time.perf_counter() - begun, file=answers, flush=True)
