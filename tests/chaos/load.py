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
    """NUM_USERS users, each with one request after the other until `cease`."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self.num_requests = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()  # by what the user did and how the request ended
        self._client = client
        self._chance = random.Random(seed)
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
            behaviour = self._chance.choice(list(EXPECTED))
            self.num_requests += 1
            try:
                outcome = await getattr(self, f"_{behaviour}")(self._request())
            except ServingError as error:
                outcome = error.code.name
            self.outcomes[behaviour, outcome] += 1

    def _request(self) -> dict[str, Any]:
        number = self._chance.randrange(2**32)
        prompt = f"Tale {number % 50} of those " * self._chance.randint(1, 40)
        return {"prompt": prompt, "seed": number, "max_tokens": self._chance.randint(1, 300), **self._chance.choice(_PARAMETERS)}

    async def _read(self, request: dict[str, Any]) -> str:
        await self._client.generate(**request)
        return "finished"

    async def _leave(self, request: dict[str, Any]) -> str:
        num_deltas = self._chance.randint(0, 30)
        async with contextlib.aclosing(self._client.stream(**request)) as events:
            async for event in events:
                num_deltas -= isinstance(event, Delta)
                if num_deltas < 0:
                    return "left"
        return "finished"

    async def _abort(self, request: dict[str, Any]) -> str:
        name = f"user-{request['seed']}-{self.num_requests}"
        answer = asyncio.create_task(self._client.generate(**request, request_id=name))
        await asyncio.sleep(self._chance.uniform(0, 1))
        await self._client.abort(name)
        await answer
        return "finished"

    async def _hurry(self, request: dict[str, Any]) -> str:
        await self._client.generate(**request, timeout=self._chance.uniform(0.01, 1))
        return "finished"

    async def _dawdle(self, request: dict[str, Any]) -> str:
        async for event in self._client.stream(**request):
            if isinstance(event, Delta) and self._chance.random() < 0.05:
                await asyncio.sleep(self._chance.uniform(0, 1))
        return "finished"

    async def _err(self, request: dict[str, Any]) -> str:
        await self._client.generate(**request | {"top_p": 1.5})
        return "finished"
