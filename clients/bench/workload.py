"""What a load consists of."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from clients.descriptions import Model
from clients.request import Request


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of fixed lengths in tokens; the first `shared_prefix_tokens` of every prompt are the same."""

    prompt_tokens: int
    max_tokens: int
    shared_prefix_tokens: int = 0
    temperature: float = 0.0
    timeout: float | None = None
    seed: int = 0

    def requests(self, model: Model, level: str, count: int) -> list[Request]:
        """`count` requests with random prompts: no two share a page beyond the shared prefix. The same arguments give the same ones."""
        # Whatever ends a text would be an odd thing to find in a prompt.
        vocabulary = sorted(set(range(model.vocab_size)) - set(model.end_token_ids))
        prefix = _draw(f"{self.seed} prefix", vocabulary, self.shared_prefix_tokens)
        num_own = self.prompt_tokens - self.shared_prefix_tokens
        return [self._request(prefix + _draw(f"{self.seed} {level} {index}", vocabulary, num_own), index) for index in range(count)]

    def _request(self, token_ids: list[int], index: int) -> Request:
        return Request(
            token_ids=token_ids,
            max_tokens=self.max_tokens,
            ignore_eos=True,
            temperature=self.temperature,
            seed=self.seed + index,
            timeout=self.timeout,
        )


def _draw(seed: str, vocabulary: Sequence[int], count: int) -> list[int]:
    return random.Random(seed).choices(vocabulary, k=count)
