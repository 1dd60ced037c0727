"""Random requests, some of which are given up, too slow, late or wrong, and a count of how they ended."""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

from clients import AsyncClient, ServingError
from clients.results import Delta

NUM_USERS = 24

_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1},
    {"temperature": 0.7, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.9, "stop": ["the", "of"]},
)
#: What may become of a request, by what its user does with it.
EXPECTED = {
    "read": {"finished"},
    "leave": {"finished", "left"},
    "abort": {"finished", "CANCELLED"},
    "hurry": {"finished", "DEADLINE_EXCEEDED"},
    "dawdle": {"finished"},
    "err": {"INVALID_ARGUMENT"},
}


class Load:
    """NUM_USERS users, each with one request after the other until `cease`; what a request is like, and its user, depends on its number."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self.num_requests = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()  # by what the user did and how the request ended
        self._client = client
        self._seed = seed
        self._is_over = False

    async def run(self) -> None:
        """Until `cease`, and then to the ends of the requests that run."""
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_USERS):
                group.create_task(self._use())

    def cease(self) -> None:
        """Begin no more requests."""
        self._is_over = True

    async def _use(self) -> None:
        while not self._is_over:
            self.num_requests += 1
            self.outcomes[await self._request_once(self.num_requests)] += 1

    async def _request_once(self, number: int) -> tuple[str, str]:
        """What the user did and how it ended; one that is to come back later, as after the control plane stood still, does so."""
        while True:
            chance = random.Random(f"{self._seed} {number}")
            behaviour = chance.choice(list(EXPECTED))
            try:
                return behaviour, await getattr(self, f"_{behaviour}")(_request(chance), chance)
            except ServingError as error:
                if error.retry_after_seconds is None:
                    return behaviour, error.code.name
                await asyncio.sleep(error.retry_after_seconds)

    async def _read(self, request: dict[str, Any], _: random.Random) -> str:
        await self._client.generate(**request)
        return "finished"

    async def _leave(self, request: dict[str, Any], chance: random.Random) -> str:
        num_deltas = chance.randint(0, 30)
        async with contextlib.aclosing(self._client.stream(**request)) as events:
            async for event in events:
                num_deltas -= isinstance(event, Delta)
                if num_deltas < 0:
                    return "left"
        return "finished"

    async def _abort(self, request: dict[str, Any], chance: random.Random) -> str:
        name = f"user-{request['seed']}"
        answer = asyncio.create_task(self._client.generate(**request, request_id=name))
        await asyncio.sleep(chance.uniform(0, 1))
        await self._client.abort(name)
        await answer
        return "finished"

    async def _hurry(self, request: dict[str, Any], chance: random.Random) -> str:
        await self._client.generate(**request, timeout=chance.uniform(0.01, 1))
        return "finished"

    async def _dawdle(self, request: dict[str, Any], chance: random.Random) -> str:
        async for event in self._client.stream(**request):
            if isinstance(event, Delta) and chance.random() < 0.05:
                await asyncio.sleep(chance.uniform(0, 1))
        return "finished"

    async def _err(self, request: dict[str, Any], _: random.Random) -> str:
        await self._client.generate(**request | {"top_p": 1.5})
        return "finished"


def _request(chance: random.Random) -> dict[str, Any]:
    seed = chance.randrange(2**32)
    prompt = f"Tale {seed % 50} of those " * chance.randint(1, 40)
    return {"prompt": prompt, "seed": seed, "max_tokens": chance.randint(1, 300), **chance.choice(_PARAMETERS)}
