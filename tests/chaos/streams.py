"""Streams that never cease: as many as there are slots, each followed by the next of its kind."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from chaos.answer import Answer

from clients import AsyncClient

NUM_STREAMS = 32

_KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    {"temperature": 1.2, "presence_penalty": 0.5, "logit_bias": {300: 2.0, 301: -5.0}, "priority": 1},
    {"temperature": 0.8, "stop": ["e", "nothing ever"]},  # from min_tokens on
    {"temperature": 0.7, "logprobs": True, "top_logprobs": 3, "prompt_logprobs": 2, "cache_salt": "chaos"},
    {"temperature": 0.8, "n": 2},
    {"temperature": 0.9, "json_schema": '{"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1000}'},
    # The lexer of its grammar makes states for every character, and many more for every mask.
    {"temperature": 0.9, "json_schema": '{"type": "string", "minLength": 19000}'},
)


def request(index: int, length: int) -> dict[str, Any]:
    """Request number `index`, of some `length` tokens; it depends on nothing else."""
    kind = _KINDS[index % len(_KINDS)]
    fields: dict[str, Any] = {"prompt": f"Tale {index} of those " * (1 + index % 9), "seed": index, "max_tokens": length + index % 50}
    if "json_schema" not in kind:
        fields["ignore_eos"] = True
    if "stop" in kind:
        fields["min_tokens"] = length - 20
    return fields | kind


#: Asks one thing and listens to the end.
Ask = Callable[[dict[str, Any]], Awaitable[Answer]]


class Streams:
    """Runs requests, one by each of `users` at a time, and keeps their answers, and how many entries `faults` grew by meanwhile."""

    def __init__(self, users: Sequence[Ask], length: int, faults: Sequence[object]) -> None:
        self.answers: dict[int, Answer] = {}
        self.faults_seen: list[int] = []
        self._users = users
        self._length = length
        self._faults = faults
        self._next = iter(range(1_000_000))
        self._is_over = False

    async def run(self) -> None:
        """Until `cease`, and then to the ends of those that run."""
        async with asyncio.TaskGroup() as group:
            for ask in self._users:
                group.create_task(self._one_after_the_other(ask))

    def cease(self) -> None:
        """Begin no more requests."""
        self._is_over = True

    async def _one_after_the_other(self, ask: Ask) -> None:
        while not self._is_over:
            index, before = next(self._next), len(self._faults)
            self.answers[index] = await ask(request(index, self._length))
            self.faults_seen.append(len(self._faults) - before)


async def undisturbed(client: AsyncClient, requests: Mapping[int, dict[str, Any]]) -> dict[int, Answer]:
    """Answers to the same requests by number: the first of each kind quite alone, the others together."""
    alone = sorted(requests)[: len(_KINDS)]
    answers = {index: await Answer.to(client, requests[index]) for index in alone}
    together = sorted(requests.keys() - answers.keys())
    return answers | dict(zip(together, await asyncio.gather(*(Answer.to(client, requests[index]) for index in together)), strict=True))
