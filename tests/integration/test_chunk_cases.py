"""Chunks, page edges and batch shapes: every answer is the one of a plain full forward. Real engine, scheduler and model."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from harness.checkpoints import TinyCheckpoint
from harness.engine_runs import Ask, Outcome, RealBench
from harness.oracle import Oracle

from worker.models import LoadOptions, Model, load_model

_PAGE, _NUM_TOKENS = 16, 20
_LENGTHS = (1, 15, 16, 17, 31, 32, 33, 47, 48, 49)
_CHUNKS = (1, 15, 16, 17, 32, 33, 512)


def _ask(length: int) -> Ask:
    """A greedy request of `length` tokens that all differ."""
    return Ask(length, tuple((length * 31 + 13 * index) % 1024 for index in range(length)), _NUM_TOKENS)


_ASKS = {length: _ask(length) for length in (*_LENGTHS, 5, 25, 65, 80)}


def load(directory: Path, page_tokens: int = _PAGE) -> Model:
    return load_model(directory, LoadOptions(torch.float32, torch.device("cpu"), page_tokens))


@dataclass(frozen=True)
class Subject:
    directory: Path
    model: Model
    solo: dict[int, Outcome]

    def assert_same(self, outcomes: dict[int, Outcome]) -> None:
        for seed, outcome in outcomes.items():
            outcome.assert_equals(self.solo[seed])
            assert outcome.finished.num_generated_tokens == len(outcome.token_ids)


@pytest.fixture(scope="module")
def subject(tiny_checkpoint: TinyCheckpoint) -> Subject:
    async def solo(model: Model) -> dict[int, Outcome]:
        return {ask.seed: (await RealBench(model).generate([ask]))[ask.seed] for ask in _ASKS.values()}

    directory = tiny_checkpoint("qwen3", head_dim=32)
    model = load(directory)
    return Subject(directory, model, asyncio.run(solo(model)))


def test_chk_01_answers_alone_are_those_of_a_full_forward(subject: Subject) -> None:
    oracle = Oracle(subject.directory)
    for length, ask in _ASKS.items():
        tokens = subject.solo[length].token_ids
        assert oracle.logits([*ask.prompt, *tokens[:-1]])[length - 1 :].argmax(-1).tolist() == tokens


@pytest.mark.parametrize(("chunk", "junk"), [*((chunk, float("nan")) for chunk in _CHUNKS), (1, 1e4), (17, 1e4)])
async def test_chk_01_chk_07_lengths_around_page_and_chunk(subject: Subject, chunk: int, junk: float) -> None:
    bench = RealBench(subject.model, max_step_tokens=chunk, prefix_caching=False, junk=junk)
    for length in _LENGTHS:
        subject.assert_same(await bench.generate([_ASKS[length]]))
    assert max(bench.worker.chunk_sizes) == min(chunk, max(_LENGTHS))


@pytest.mark.parametrize(("chunk", "lengths"), [(32, (33, 65)), (24, (25, 49))])
async def test_chk_02_last_chunk_of_one_token(subject: Subject, chunk: int, lengths: tuple[int, ...]) -> None:
    oracle, bench = Oracle(subject.directory), RealBench(subject.model, max_step_tokens=chunk, prefix_caching=False)
    for ask in (replace(_ASKS[length], sampling={"prompt_logprobs": 1}) for length in lengths):
        subject.assert_same(await bench.generate([ask]))
        expected = oracle.logits(ask.prompt).log_softmax(-1)[range(len(ask.prompt) - 1), ask.prompt[1:]]
        entries = bench.front_end.prompt_logprobs[str(ask.seed)][1:]
        torch.testing.assert_close(torch.tensor([entry.logprob for entry in entries]), expected, atol=1e-4, rtol=0)


async def test_chk_03_a_partial_prefill_emits_nothing(subject: Subject) -> None:
    sampling = {"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logprobs": True}
    ask, seen = replace(_ASKS[80], sampling=sampling), []

    def watch(bench: RealBench, num_rounds: int) -> None:
        seen.append(len(bench.front_end.output_of("80")))

    solo = (await RealBench(subject.model).generate([ask]))[80]
    outcome = (await RealBench(subject.model, max_step_tokens=16).generate([ask], hook=watch))[80]
    outcome.assert_equals(solo)
    assert seen[:7] == [0, 0, 0, 0, 0, 1, 2] and outcome.finished.num_generated_tokens == _NUM_TOKENS


async def test_chk_04_rows_without_work_get_no_token(subject: Subject) -> None:
    short = [replace(_ask(1 + index % 3), seed=200 + index, max_tokens=6) for index in range(10)]
    asks = [*short, _ASKS[65], _ASKS[49], _ASKS[80]]
    outcomes = await RealBench(subject.model, max_step_tokens=16).generate(asks)
    for ask in short:
        alone = (await RealBench(subject.model).generate([ask]))[ask.seed]
        outcomes.pop(ask.seed).assert_equals(alone)
    subject.assert_same(outcomes)


async def test_chk_05_place_in_the_batch_does_not_matter(subject: Subject) -> None:
    for order in itertools.permutations((5, 17, 31, 32)):
        bench = RealBench(subject.model, junk=float("nan"))
        subject.assert_same(await bench.generate([_ASKS[length] for length in order]))


@pytest.mark.parametrize("size", range(1, 14))
async def test_chk_06_every_batch_size(subject: Subject, size: int) -> None:
    asks, running = [_ASKS[length] for length in sorted(_ASKS)][:size], []

    def watch(bench: RealBench, num_rounds: int) -> None:
        running.append(sum(bench.is_running(ask.seed) for ask in asks))

    subject.assert_same(await RealBench(subject.model, max_sequences=12, junk=1e4).generate(asks, hook=watch))
    assert max(running) == min(size, 12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_mod_11_batch_size_changes_no_token(dtype: str, tiny_checkpoint: TinyCheckpoint) -> None:
    # torch's own products add so long a sum of the MLP in an order that depends on the number of rows.
    directory = tiny_checkpoint("qwen3", dtype, intermediate_size=1536)
    model = load_model(directory, LoadOptions(getattr(torch, dtype), torch.device("cpu"), _PAGE))
    asks = [replace(_ask(5 + 3 * seed), seed=seed, max_tokens=40) for seed in range(8)]
    alone = {ask.seed: (await RealBench(model).generate([ask]))[ask.seed] for ask in asks}
    for size in (2, 4, 8):
        for seed, outcome in (await RealBench(model).generate(asks[:size])).items():
            outcome.assert_equals(alone[seed])


@pytest.mark.parametrize("page_tokens", [1, 2, 3, 128, 512, 8192])  # the last is more than the model's context
async def test_chk_08_odd_page_sizes(subject: Subject, page_tokens: int) -> None:
    bench = RealBench(load(subject.directory, page_tokens), num_pages=max(4096 // page_tokens, 14), max_step_tokens=24)
    subject.assert_same(await bench.generate(list(_ASKS.values()), stride=1))


@pytest.mark.parametrize("chunk", [7, 17, 512])
async def test_chk_07_pages_that_leave_a_window_and_come_again(chunk: int, tiny_checkpoint: TinyCheckpoint) -> None:
    window = {"use_sliding_window": True, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
    model, asks = load(tiny_checkpoint("qwen3", **window)), [_ASKS[length] for length in (49, 65, 80)]
    alone = {ask.seed: (await RealBench(model).generate([ask]))[ask.seed] for ask in asks}
    outcomes = await RealBench(model, num_pages=14, max_step_tokens=chunk, junk=float("nan")).generate(asks, stride=2)
    for seed, outcome in outcomes.items():
        outcome.assert_equals(alone[seed])


@pytest.fixture
def junk_in_new_tensors() -> Iterator[None]:
    """Tensors that are made without values hold NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


async def test_chk_07_buffers_are_written_before_they_are_read(subject: Subject, junk_in_new_tensors: None) -> None:
    assert torch.empty(8).isnan().all()
    bench = RealBench(subject.model, max_step_tokens=33, junk=float("nan"))
    subject.assert_same(await bench.generate(list(_ASKS.values()), stride=1))
