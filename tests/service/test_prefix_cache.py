"""What clients see of the prefix cache."""

import asyncio
from pathlib import Path

import pytest
from harness.service import Service, scripted_service
from harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_pfx_04_salts_separate_tenants(real: Service) -> None:
    prompt, cached, shown = [*range(30, 70)], [], []
    for salt in ("a", "b", None, "", "a", "b"):
        fields = {} if salt is None else {"cache_salt": salt}
        answer = await real.stream(token_ids=prompt, max_tokens=3, temperature=0, **fields)
        cached.append(answer.usage.cached_tokens)
        shown.append(answer.shown)
    assert cached == [0, 0, 0, 32, 32, 32]  # an empty salt is none
    assert all(one == shown[0] for one in shown)


async def test_pfx_08_cached_tokens_in_usage(real: Service) -> None:
    prompt = [*range(100, 140)]
    for cached in (0, 32, 32):
        assert (await real.unary(token_ids=prompt, max_tokens=2, temperature=0)).usage.cached_tokens == cached
    assert (await real.stream(token_ids=prompt[:32], max_tokens=2, temperature=0)).usage.cached_tokens == 16


async def test_pfx_08_a_preemption_does_not_change_cached_tokens(scripted_model: Path) -> None:
    async with scripted_service(scripted_model, page_tokens=16, num_pages=8, max_model_len=128, step_seconds=0.002) as service:
        prompt = [*b"x" * 39, ord(":")]
        for cached in (0, 32):
            assert (await service.unary(token_ids=prompt, max_tokens=2)).usage.cached_tokens == cached
        preempted = asyncio.ensure_future(service.unary(token_ids=prompt, max_tokens=60, priority=1))
        await until(lambda: service.num_admissions == 3)
        others = [service.unary(token_ids=[97 + index] * 30 + [58], max_tokens=60) for index in range(2)]
        await asyncio.gather(*others)
        answer = await preempted
        assert answer.finished.timing.num_readmissions >= 1
        assert (answer.usage.cached_tokens, answer.usage.completion_tokens) == (32, 60)
        assert answer.text == "z" * 60
