"""What the prefix cache gives back is what would have been computed. Real engine, scheduler and model."""

from dataclasses import dataclass, replace

import pytest
import torch
from harness.checkpoints import TinyCheckpoint
from harness.engine_runs import Ask, Outcome, RealBench, load_on

from worker.models import LoadOptions, Model, load_model

_PAGE, _NUM_TOKENS = 16, 6


def _block(index: int) -> tuple[int, ...]:
    """A page of tokens."""
    return tuple((index * 97 + 5 * offset + 3) % 1024 for offset in range(_PAGE))


def _ask(seed: int, *blocks: int, **changes: object) -> Ask:
    return replace(Ask(seed, tuple(token for index in blocks for token in _block(index)), _NUM_TOKENS), **changes)


@dataclass(frozen=True)
class Subject:
    model: Model

    async def solo(self, ask: Ask) -> Outcome:
        return (await RealBench(self.model).generate([ask]))[ask.seed]

    async def cached(self, bench: RealBench, ask: Ask) -> int:
        """Run a request, see that its answer is right, and return how much of its prompt was cached."""
        outcome = (await bench.generate([ask]))[ask.seed]
        outcome.assert_equals(await self.solo(ask))
        return outcome.finished.num_cached_tokens


def _load(tiny_checkpoint: TinyCheckpoint, **config: object) -> Model:
    return load_model(tiny_checkpoint("qwen3", head_dim=32, **config), LoadOptions(torch.float32, torch.device("cpu"), _PAGE))


@pytest.fixture(scope="module")
def subject(tiny_checkpoint: TinyCheckpoint) -> Subject:
    return Subject(_load(tiny_checkpoint))


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
async def test_pfx_01_prompt_wholly_in_the_cache(subject: Subject, num_blocks: int) -> None:
    bench = RealBench(subject.model)
    asks = [_ask(seed, *range(num_blocks)) for seed in range(5)]
    assert await subject.cached(bench, asks[0]) == 0
    assert await subject.cached(bench, asks[1]) == _PAGE * (num_blocks - 1)
    together = await bench.generate(asks[2:])
    assert {outcome.finished.num_cached_tokens for outcome in together.values()} == {_PAGE * (num_blocks - 1)}
    assert {tuple(outcome.token_ids) for outcome in together.values()} == {tuple((await subject.solo(asks[0])).token_ids)}


@pytest.mark.parametrize("second", [(1, 0), (2, 1), (1,)], ids=["YX", "ZY", "Y"])
async def test_pfx_02_same_block_after_another_history(subject: Subject, second: tuple[int, ...]) -> None:
    bench = RealBench(subject.model)
    await subject.cached(bench, _ask(1, 0, 1))
    assert await subject.cached(bench, _ask(2, *second)) == 0


async def test_pfx_04_salts_separate_tenants(subject: Subject) -> None:
    bench = RealBench(subject.model)
    salts = ("a", "b", "", "a", "")
    cached = [await subject.cached(bench, _ask(seed, 0, 1, cache_salt=salt)) for seed, salt in enumerate(salts)]
    assert cached == [0, 0, 0, _PAGE, _PAGE]


async def test_pfx_05_other_weights_under_the_same_name(subject: Subject, tiny_checkpoint: TinyCheckpoint) -> None:
    other, bench = _load(tiny_checkpoint, seed=1), RealBench(subject.model)
    await subject.cached(bench, _ask(1, 0, 1))
    bench.lose(bench.worker)
    bench.join(load_on(other, bench.num_pages))
    assert await Subject(other).cached(bench, _ask(2, 0, 1)) == 0


async def test_pfx_06_evicted_blocks_lose_their_key(subject: Subject) -> None:
    bench = RealBench(subject.model, num_pages=8, watermark=0.0)
    prompts = {name: tuple(range(4 * index, 4 * index + 4)) for index, name in enumerate("PQRS")}
    cached = [await subject.cached(bench, _ask(seed, *prompts[name])) for seed, name in enumerate("PPQRSPQPQ")]
    # Two prompts fill the pool: a third one takes the older one's pages.
    assert cached[:7] == [0, 3 * _PAGE, 0, 0, 0, 0, 0]
    assert max(cached[7:]) <= 3 * _PAGE


async def test_pfx_07_a_worker_lost_in_the_middle_of_a_prefill(subject: Subject) -> None:
    def lose(bench: RealBench, num_rounds: int) -> None:
        if num_rounds == 1:  # the first chunk is done, the second and the third are on their way
            bench.lose(bench.worker)
            bench.join(load_on(subject.model, bench.num_pages))

    bench, ask = RealBench(subject.model, max_step_tokens=_PAGE, junk=float("nan")), _ask(1, 0, 1, 2, 3)
    outcome = (await bench.generate([ask], hook=lose))[1]
    outcome.assert_equals(await subject.solo(ask))
    assert outcome.finished.num_cached_tokens == 0
    assert await subject.cached(bench, _ask(2, 0, 1, 2, 3)) == 3 * _PAGE


@pytest.mark.parametrize("chunk", [_PAGE, 24])
async def test_pfx_07_cancelled_in_the_middle_of_a_prefill(subject: Subject, chunk: int) -> None:
    def cancel(bench: RealBench, num_rounds: int) -> None:
        if num_rounds == 2:  # the second chunk is acknowledged, two more are on their way
            assert bench.engine.abort("1")

    bench = RealBench(subject.model, max_step_tokens=chunk, junk=float("nan"))
    await bench.run_to_end([_ask(1, 0, 1, 2, 3)], hook=cancel)
    cached = await subject.cached(bench, _ask(2, 0, 1, 2, 3))
    assert cached % _PAGE == 0 and cached <= 3 * _PAGE


async def test_pfx_07_equal_prompts_in_the_same_step(subject: Subject) -> None:
    bench = RealBench(subject.model, max_step_tokens=4 * _PAGE, junk=float("nan"))
    outcomes = await bench.generate([_ask(seed, 0, 1, 2, 3) for seed in range(4)])
    for seed, outcome in outcomes.items():
        outcome.assert_equals(await subject.solo(_ask(seed, 0, 1, 2, 3)))
