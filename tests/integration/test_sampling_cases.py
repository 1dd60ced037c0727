"""How tokens are drawn, whatever else runs: sampling, log probabilities and counts of requests. Real engine, scheduler and model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from fakes.control_plane.engine_doubles import make_choice
from harness.checkpoints import TinyCheckpoint
from harness.engine_runs import Ask, Crowd, Outcome, RealBench

from control_plane.core.sampling import SamplingParams
from control_plane.edge.service.admission.parameters import choice_seed
from control_plane.engine.ports import Failure, FinishReason
from worker.models import LoadOptions, Model, load_model

_PAGE, _VOCAB_SIZE = 16, 1024


def _prompt(seed: int, length: int = 12) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, _VOCAB_SIZE, length).tolist())


def _ask(seed: int, max_tokens: int = 20, prompt: tuple[int, ...] = _prompt(7), **changes: Any) -> Ask:
    names = ("end_token_ids", "min_tokens", "priority")
    fields = {name: changes.pop(name) for name in names if name in changes}
    return Ask(seed, prompt, max_tokens, changes, **fields)


@dataclass(frozen=True)
class Subject:
    model: Model

    async def solo(self, ask: Ask) -> Outcome:
        return (await RealBench(self.model).generate([ask]))[ask.seed]

    async def tokens(self, ask: Ask) -> list[int]:
        return (await self.solo(ask)).token_ids


@pytest.fixture(scope="module")
def subject(tiny_checkpoint: TinyCheckpoint) -> Subject:
    return Subject(load_model(tiny_checkpoint("qwen3", head_dim=32), LoadOptions(torch.float32, torch.device("cpu"), _PAGE)))


# Seeds and other sequences


def _mixed(run: int) -> list[Ask]:
    samplings = [
        {},
        {"temperature": 1.0},
        {"temperature": 2.0, "top_k": 9},
        {"repetition_penalty": 1.4},
        {"min_p": 0.2, "temperature": 1.0},
    ]
    samplings += [{"logit_bias": ((5, 50.0),)}, {"temperature": 0.3, "top_p": 0.5}]
    return [_ask(100 * run + index, 4 * index + 2, _prompt(index, 3 + 7 * index), **fields) for index, fields in enumerate(samplings)]


@pytest.mark.parametrize("run", [1, 2, 3])
async def test_smp_01_others_do_not_change_a_seeded_request(subject: Subject, run: int) -> None:
    ask = _ask(1234, temperature=0.9)
    solo = await subject.solo(ask)
    # To the engine every request has a seed: those beside another run are unseeded in that they are others.
    for others in ([_ask(run, temperature=1.0)], [_ask(77, temperature=1.0)], _mixed(run)):
        (await RealBench(subject.model).generate([*others, ask]))[1234].assert_equals(solo)


async def _three_choices(subject: Subject, seeds: list[int]) -> list[list[int]]:
    bench = RealBench(subject.model)
    choices = [make_choice(index, sampling=SamplingParams(temperature=1.0, seed=seed)) for index, seed in enumerate(seeds)]
    bench.submit("n", _prompt(7), max_tokens=20, choices=choices)
    await bench.run_to_end([])
    return [bench.front_end.tokens["n", choice] for choice in range(3)]


async def test_smp_02_choices_differ_and_come_again(subject: Subject) -> None:
    seeds = [choice_seed(5, choice) for choice in range(3)]
    first, second = await _three_choices(subject, seeds), await _three_choices(subject, seeds)
    assert first == second and len({tuple(tokens) for tokens in first}) == 3
    assert first == [await subject.tokens(_ask(seed, temperature=1.0)) for seed in seeds]


async def test_smp_04_penalties_survive_preemption(subject: Subject) -> None:
    ask = _ask(1, 24, presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.2)
    outcome = (await RealBench(subject.model, num_pages=3).generate([ask], hook=Crowd(1, 2)))[1]
    outcome.assert_equals(await subject.solo(ask))
    assert outcome.finished.num_readmissions >= 2
    assert outcome.token_ids != await subject.tokens(_ask(1, 24))


async def test_smp_05_a_bias_steers_and_stays_with_its_request(subject: Subject) -> None:
    greedy = await subject.tokens(_ask(1))
    forced, banned = _ask(2, 5, logit_bias=((7, 100.0),)), _ask(3, logit_bias=((greedy[0], -100.0),))
    assert await subject.tokens(forced) == [7] * 5
    assert greedy[0] not in await subject.tokens(banned)
    # The first neighbour ends midway, and the rows behind it move up.
    outcomes = await RealBench(subject.model).generate([_ask(4, 3), _ask(1), banned, forced])
    for ask in (_ask(1), banned, forced):
        outcomes[ask.seed].assert_equals(await subject.solo(ask))


async def test_smp_06_a_request_that_excludes_every_token_ends_alone(subject: Subject) -> None:
    bench, canary = RealBench(subject.model), _ask(1)
    everything = frozenset(range(_VOCAB_SIZE))
    await bench.run_to_end([canary, _ask(2, end_token_ids=everything, min_tokens=5), _ask(3, end_token_ids=everything)])
    assert bench.front_end.failed.keys() == {"2"} and bench.front_end.failed["2"].failure is Failure.INVALID_ARGUMENT
    assert bench.front_end.output_of("1") == await subject.tokens(canary)
    assert bench.front_end.output_of("3") == (await subject.tokens(canary))[:1]


# Extremes


async def test_val_06_temperatures_in_one_batch(subject: Subject) -> None:
    greedy = await subject.tokens(_ask(1, 5))
    asks = [_ask(seed, 5, temperature=value) for seed, value in enumerate((0.0, 1e-12, 1e-5, 1e-4, 2.0, 1e6))]
    outcomes = await RealBench(subject.model).generate(asks)
    assert [outcomes[seed].token_ids for seed in range(4)] == [greedy] * 4
    assert all(len(outcomes[seed].token_ids) == 5 for seed in (4, 5))


async def test_val_07_top_k_and_top_p_in_one_batch(subject: Subject) -> None:
    off = [
        {},
        {"top_k": _VOCAB_SIZE},
        {"top_k": _VOCAB_SIZE + 1},
        {"top_k": 2**31 - 1},
        {"top_k": 2**31},
        {"top_k": 2**32 - 1},
        {"top_p": 1.0},
    ]
    narrow = [{"top_k": 1, "seed": 10}, {"top_p": 1e-9, "seed": 10}, {"min_p": 1.0, "seed": 10}]
    expected, greedy = await subject.tokens(_ask(9, temperature=1.0)), await subject.tokens(_ask(9))
    bench = RealBench(subject.model)
    for index, fields in enumerate(off + narrow):
        bench.submit(str(index), _prompt(7), sampling=SamplingParams(**{"temperature": 1.0, "seed": 9, **fields}), max_tokens=20)
    await bench.run_to_end([])
    outputs = [bench.front_end.output_of(str(index)) for index in range(len(off + narrow))]
    assert outputs == [expected] * len(off) + [greedy] * len(narrow)


async def test_val_08_seeds_at_the_ends_of_their_range(subject: Subject) -> None:
    outputs = {}
    for _ in range(2):
        for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
            tokens = await subject.tokens(_ask(seed, temperature=1.0))
            assert outputs.setdefault(seed, tokens) == tokens
    assert len({tuple(tokens) for tokens in outputs.values()}) == len(outputs)


# Log probabilities


@pytest.mark.parametrize("num_others", [0, 7])
async def test_lpu_03_logprobs_do_not_know_how_a_token_was_drawn(subject: Subject, num_others: int) -> None:
    samplings = [{"temperature": value, "top_k": 1} for value in (0.0, 0.5, 1.0, 2.0)] + [{"repetition_penalty": 1.3}]
    for fields in samplings:
        bench = RealBench(subject.model)
        ask = _ask(1, 3, logprobs=True, top_logprobs=20, **fields)
        outcome = (await bench.generate([*(_ask(100 + index, 4) for index in range(num_others)), ask]))[1]
        for index, entry in enumerate(bench.front_end.logprobs["1", 0], start=len(ask.prompt)):
            expected = outcome.logits[index].log_softmax(-1)
            assert entry.logprob == float(expected[entry.token_id])
            assert entry.top == tuple(zip(expected.topk(20).indices.tolist(), expected.topk(20).values.tolist(), strict=True))


async def test_lpu_02_banned_tokens_keep_their_logprob(subject: Subject) -> None:
    (first, *_) = await subject.tokens(_ask(1))
    fields = {"temperature": 0.8, "top_p": 0.3, "logprobs": True, "top_logprobs": 20}
    bench = RealBench(subject.model)
    await bench.generate(
        [_ask(1, 8, logit_bias=((first, -100.0),), **fields), _ask(2, 8, end_token_ids=frozenset([first]), min_tokens=8, **fields)]
    )
    for name in ("1", "2"):
        entries = bench.front_end.logprobs[name, 0]
        assert entries[0].top[0][0] == first != entries[0].token_id
        assert all(-9999 <= value <= 0 for entry in entries for value in (entry.logprob, *(logprob for _, logprob in entry.top)))


async def test_lpu_05_prompt_logprobs_with_chunks_and_preemption(subject: Subject) -> None:
    ask = _ask(1, 4, _prompt(3, 80), prompt_logprobs=2)
    whole, chunked = RealBench(subject.model), RealBench(subject.model, max_step_tokens=7)
    await whole.generate([ask])
    await chunked.generate([ask])
    expected = whole.front_end.prompt_logprobs["1"]
    assert len(expected) == 80 and chunked.front_end.prompt_logprobs["1"] == expected

    def crowd(bench: RealBench, num_rounds: int) -> None:
        if num_rounds == 2:  # two chunks are acknowledged
            for index in range(3):
                bench.send(_ask(100 + index, 30, (index,) * 7, priority=-1))

    crowded = RealBench(subject.model, num_pages=8, max_step_tokens=7)
    outcome = (await crowded.generate([ask], hook=crowd))[1]
    assert crowded.front_end.prompt_logprobs["1"] == expected
    assert outcome.finished.num_readmissions >= 1


# Counts


@pytest.mark.parametrize("max_tokens", [1, 4, 16])
async def test_lpu_06_usage_at_the_length_limit(subject: Subject, max_tokens: int) -> None:
    outcome = await subject.solo(_ask(1, max_tokens))
    finished = outcome.finished
    assert len(outcome.token_ids) == finished.num_generated_tokens == max_tokens
    assert (finished.reason, finished.num_prompt_tokens) == (FinishReason.LENGTH, 12)


async def test_lpu_06_the_end_token_counts(subject: Subject) -> None:
    third = (await subject.tokens(_ask(1)))[2]
    outcome = await subject.solo(_ask(1, end_token_ids=frozenset([third])))
    assert (len(outcome.token_ids), outcome.finished.num_generated_tokens, outcome.finished.reason) == (3, 3, FinishReason.STOP)
    assert outcome.finished.end_token_id == third == outcome.token_ids[-1]
