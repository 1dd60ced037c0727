"""A request gives the same tokens from the same logits, bit for bit, whatever happens around it: real engine, scheduler and models."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.checkpoints import TinyCheckpoint
from harness.engine_runs import Ask, Crowd, Outcome, RealBench, load_on

from kernels.quantized import Quantizer
from worker.models import LoadOptions, Model, load_model

pytestmark = pytest.mark.slow

_PAGE, _NUM_TOKENS, _VOCAB_SIZE = 16, 34, 1024
_SYSTEM_PROMPT = tuple(np.random.default_rng(99).integers(0, _VOCAB_SIZE, 2 * _PAGE + 5).tolist())  # of every third request
_PROMPT_LENGTHS = (1, _PAGE - 1, _PAGE, _PAGE + 1, 40, 57, 3 * _PAGE, 90)
_SAMPLING = (
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 1.2, "top_k": 50, "min_p": 0.01, "presence_penalty": 0.5},
    {"temperature": 1.0},
)


def _ask(seed: int) -> Ask:
    length = _PROMPT_LENGTHS[seed % len(_PROMPT_LENGTHS)]
    prompt = np.random.default_rng(seed).integers(0, _VOCAB_SIZE, length).tolist()
    ends = frozenset(range(0, _VOCAB_SIZE, 32)) if seed % 4 == 3 else frozenset()
    return Ask(seed, (*(_SYSTEM_PROMPT if seed % 3 == 0 else ()), *prompt), _NUM_TOKENS, _SAMPLING[seed % len(_SAMPLING)], ends)


_ASKS = tuple(_ask(seed) for seed in range(32))
_SOME = _ASKS[:10]  # every way of sampling, twice

_FEW = tuple(_ASKS[seed] for seed in (1, 2, 4, 5, 18))  # every way of sampling, once; none of them ends by itself
_WINDOW = {"use_sliding_window": True, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}

Event = Callable[[RealBench], object]


def _full_pages(num_tokens: int) -> int:
    return num_tokens // _PAGE * _PAGE


@dataclass(frozen=True)
class Subject:
    """A model, loaded for two workers, and what requests give alone and undisturbed."""

    model: Model
    twin: Model
    solo: dict[int, Outcome]
    streams: bool = False  # devices with their own stream, where the requests do not run alone

    def bench(self, **options) -> RealBench:
        return RealBench(self.model, streams=self.streams, **options)

    def pair(self, **options) -> RealBench:
        return RealBench(self.model, self.twin, streams=self.streams, **options)

    def assert_same(self, outcomes: dict[int, Outcome]) -> None:
        for seed, outcome in outcomes.items():
            outcome.assert_equals(self.solo[seed])


async def _solo(model: Model, asks: Iterable[Ask]) -> dict[int, Outcome]:
    return {ask.seed: (await RealBench(model).generate([ask]))[ask.seed] for ask in asks}


def _subject(directory: Path, dtype: str, asks: Iterable[Ask], streams: bool = False, quantize: str = "") -> Subject:
    quantizer = Quantizer.parse(quantize) if quantize else None
    placement = LoadOptions(getattr(torch, dtype), torch.device("cpu"), _PAGE, quantizer=quantizer)
    model, twin = (load_model(directory, placement) for _ in range(2))
    return Subject(model, twin, asyncio.run(_solo(model, asks)), streams)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "bfloat16 on a stream", "bfloat16 in int8"])
def subject(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> Subject:
    dtype, _, way = request.param.partition(" ")
    directory = tiny_checkpoint("qwen3", dtype, intermediate_size=1536)
    return _subject(directory, dtype, _ASKS, way == "on a stream", way.removeprefix("in ") if way.startswith("in ") else "")


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["llama", "qwen2", "qwen3_moe", "window"])
def other_family(request: pytest.FixtureRequest, dtype: str, tiny_checkpoint: TinyCheckpoint) -> Subject:
    arch, config = ("qwen3", _WINDOW) if request.param == "window" else (request.param, {})
    return _subject(tiny_checkpoint(arch, dtype, **config), dtype, _SOME)


def test_the_requests_differ(subject: Subject) -> None:
    texts = {tuple(outcome.token_ids) for outcome in subject.solo.values()}
    assert len(texts) == len(_ASKS)
    assert len({len(text) for text in texts}) > 2, "some end by themselves"


# Other sequences and steps


@pytest.mark.parametrize("options", [{}, {"max_step_tokens": 48}, {"max_sequences": 7}, {"prefix_caching": False}], ids=str)
async def test_other_sequences_change_nothing(subject: Subject, options: dict[str, int]) -> None:
    bench = subject.bench(**options)
    subject.assert_same(await bench.generate(_ASKS, stride=1))
    assert bench.worker.max_in_flight == 2


@pytest.mark.parametrize("stride", [0, 1])
async def test_one_step_in_flight_changes_nothing(subject: Subject, stride: int) -> None:
    bench = subject.bench(max_steps_in_flight=1)
    subject.assert_same(await bench.generate(_ASKS, stride=stride))
    assert bench.worker.max_in_flight == 1


@pytest.mark.parametrize("num_tokens", [1, 7, _PAGE - 1, _PAGE, _PAGE + 1])
async def test_chunks_change_nothing(subject: Subject, num_tokens: int) -> None:
    for ask in _FEW:
        bench = subject.bench(max_step_tokens=num_tokens)
        subject.assert_same(await bench.generate([ask]))
        assert len(ask.prompt) <= num_tokens or max(bench.worker.chunk_sizes) == num_tokens


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
@pytest.mark.parametrize("num_tokens", [7, _PAGE - 1, _PAGE, _PAGE + 1])
async def test_chunks_beside_decodes_change_nothing(subject: Subject, num_tokens: int, max_steps_in_flight: int) -> None:
    bench = subject.bench(max_step_tokens=num_tokens, max_steps_in_flight=max_steps_in_flight)
    subject.assert_same(await bench.generate(_SOME))


# The prefix cache


@pytest.mark.parametrize("options", [{}, {"max_step_tokens": 7}, {"max_steps_in_flight": 1}], ids=str)
async def test_a_prefix_hit_changes_nothing(subject: Subject, options: dict[str, int]) -> None:
    bench = subject.bench(**options)
    await bench.generate([replace(ask, seed=1000 + ask.seed, sampling={}, max_tokens=1) for ask in _SOME])
    outcomes = await bench.generate(_SOME)
    subject.assert_same(outcomes)
    for ask in _SOME:
        assert outcomes[ask.seed].finished.num_cached_tokens == _full_pages(len(ask.prompt) - 1)


async def test_another_token_ends_the_hit(subject: Subject) -> None:
    prompt, changed = _ASKS[13].prompt, (0, _PAGE - 1, _PAGE, 2 * _PAGE - 1, 2 * _PAGE)
    near = [Ask(1000 + at, (*prompt[:at], prompt[at] ^ 1, *prompt[at + 1 :]), 2) for at in changed]
    solo, bench = await _solo(subject.model, near), subject.bench()
    await bench.generate([_ASKS[13]])
    for ask, at in zip(near, changed, strict=True):
        outcome = (await bench.generate([ask]))[ask.seed]
        outcome.assert_equals(solo[ask.seed])
        assert outcome.finished.num_cached_tokens == _full_pages(at)


async def test_generated_pages_are_hit_in_a_second_turn_and_change_nothing(subject: Subject) -> None:
    further = tuple(np.random.default_rng(77).integers(0, _VOCAB_SIZE, 20).tolist())
    texts = {ask.seed: (*ask.prompt, *subject.solo[ask.seed].token_ids) for ask in _SOME}
    turns = [replace(ask, seed=1000 + ask.seed, prompt=(*texts[ask.seed], *further)) for ask in _SOME]
    solo, bench = await _solo(subject.model, turns), subject.bench()
    await bench.generate(_SOME)
    outcomes = await bench.generate(turns)
    for ask in _SOME:
        outcomes[1000 + ask.seed].assert_equals(solo[1000 + ask.seed])
        # The last token was never fed to the model.
        assert outcomes[1000 + ask.seed].finished.num_cached_tokens == _full_pages(len(texts[ask.seed]) - 1)


# Preemption


@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"max_steps_in_flight": 1, "max_step_tokens": 17}], ids=str)
async def test_two_preemptions_change_nothing(subject: Subject, options: dict[str, int]) -> None:
    for ask in _FEW:
        bench = subject.bench(num_pages=-(-(len(ask.prompt) + ask.max_tokens) // _PAGE), **options)
        outcomes = await bench.generate([ask], hook=Crowd(ask.seed, 2))
        subject.assert_same(outcomes)
        assert outcomes[ask.seed].finished.num_readmissions >= 2


@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"max_steps_in_flight": 1, "max_step_tokens": 17}], ids=str)
async def test_preemptions_among_many_change_nothing(subject: Subject, options: dict[str, int]) -> None:
    num_preemptions = 0
    for num_pages in (9, 13, 14):
        bench = subject.bench(num_pages=num_pages, **options)
        subject.assert_same(await bench.generate(_SOME))
        num_preemptions += bench.scheduler.counters.preemptions
    assert num_preemptions > 9  # of either alone it depends on the tokens, and in bf16 these on the CPU


# Workers


async def test_another_worker_changes_nothing(subject: Subject) -> None:
    subject.assert_same(await RealBench(subject.twin).generate(_SOME, stride=1))


async def test_two_workers_change_nothing(subject: Subject) -> None:
    bench = subject.pair(max_step_tokens=48)
    subject.assert_same(await bench.generate(_ASKS))
    assert all(worker.num_admissions > 8 for worker in bench.workers)


def _lose(bench: RealBench) -> None:
    bench.lose(bench.workers[0])


def _drain(bench: RealBench) -> None:
    bench.engine.worker_draining(bench.workers[0])


def _reset(bench: RealBench) -> None:
    bench.engine.digest_mismatch(bench.workers[0], bench.workers[0].history[-1].step_id)


def _at(events: dict[int, Event]) -> Callable[[RealBench, int], None]:
    """A hook that lets something happen before some rounds."""
    return lambda bench, num_rounds: events.get(num_rounds, lambda bench: None)(bench)


@pytest.mark.parametrize("num_rounds", [2, 23])
@pytest.mark.parametrize("event", [_lose, _drain, _reset])
async def test_a_move_in_the_middle_changes_nothing(subject: Subject, event: Event, num_rounds: int) -> None:
    for ask in _FEW[1:4]:
        bench = subject.pair(max_step_tokens=16)
        outcomes = await bench.generate([ask], hook=_at({num_rounds: event}))
        subject.assert_same(outcomes)
        assert outcomes[ask.seed].finished.num_readmissions == 1
        assert bench.workers[-1].num_admissions == 1 or event is _reset


@pytest.mark.parametrize("event", [_lose, _drain, _reset])
async def test_moves_of_many_change_nothing(subject: Subject, event: Event) -> None:
    bench = subject.pair(max_step_tokens=40)
    outcomes = await bench.generate(_ASKS, hook=_at({12: event}))
    subject.assert_same(outcomes)
    assert sum(outcome.finished.num_readmissions for outcome in outcomes.values()) > 4


# Resumes


@pytest.mark.parametrize("num_tokens", [1, 17, _NUM_TOKENS - 1])
async def test_a_resume_changes_nothing(subject: Subject, num_tokens: int) -> None:
    resumed = {ask.seed: subject.solo[ask.seed].token_ids[:-1][:num_tokens] for ask in _ASKS}
    for ask in _FEW:
        subject.assert_same(await subject.bench().generate([ask], resumed))
    subject.assert_same(await subject.bench(max_step_tokens=31).generate(_SOME, resumed, stride=1))


# All of it, and the other families


async def _generate_in_turmoil(subject: Subject) -> None:
    """Few pages, small steps, hits, resumes, and workers that come and go."""
    bench = subject.pair(num_pages=12, max_step_tokens=23)
    resumed = {seed: subject.solo[seed].token_ids[:-1][:seed] for seed in (2, 4, 7)}
    events = {4: _reset, 15: _lose, 16: lambda bench: bench.join(load_on(subject.twin, 12, subject.streams)), 30: _drain}
    outcomes = await bench.generate(_SOME, resumed, _at(events), stride=1)
    subject.assert_same(outcomes)
    assert bench.scheduler.counters.preemptions > 2
    assert bench.scheduler.counters.worker_losses > 2


async def test_turmoil_changes_nothing(subject: Subject) -> None:
    await _generate_in_turmoil(subject)


async def test_other_families_are_no_different(other_family: Subject) -> None:
    other_family.assert_same(await other_family.bench().generate(_SOME))
    other_family.assert_same(await other_family.bench(max_step_tokens=7).generate(_SOME, stride=1))
    await _generate_in_turmoil(other_family)
