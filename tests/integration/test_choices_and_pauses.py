"""Several choices, constrained output and slow readers change no bit of what a request gives. Real engine, scheduler and model."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from fakes.control_plane.engine_doubles import make_choice
from harness.checkpoints import TinyCheckpoint
from harness.engine_runs import Ask, Hook, Outcome, RealBench

from control_plane.core.sampling import SamplingParams
from control_plane.edge.service.admission.parameters import choice_seed
from control_plane.engine.ports import ChoiceSpec
from worker.models import LoadOptions, Model, load_model

_PAGE, _NUM_TOKENS, _VOCAB_SIZE = 16, 30, 1024
_PROMPT = tuple(np.random.default_rng(5).integers(0, _VOCAB_SIZE, 2 * _PAGE + 9).tolist())
_SAMPLING = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2, "presence_penalty": 0.4}
_SEEDS = tuple(choice_seed(5, choice) for choice in range(4))
_OTHERS = tuple(Ask(1000 + index, (index, *_PROMPT[: 9 * index]), 40) for index in range(3))


class Stripes:
    """Allows a third of the tokens, another one after each token."""

    is_ready = True

    def __init__(self) -> None:
        self._sum = 0

    def push(self, token_id: int) -> None:
        assert (token_id - self._sum) % 3 == 0
        self._sum += token_id

    def mask(self) -> bytes:
        return np.packbits(np.arange(_VOCAB_SIZE) % 3 == self._sum % 3, bitorder="little").tobytes()


@pytest.fixture(scope="module")
def models(tiny_checkpoint: TinyCheckpoint) -> list[Model]:
    placement = LoadOptions(torch.bfloat16, torch.device("cpu"), _PAGE)
    return [load_model(tiny_checkpoint("qwen3", "bfloat16", intermediate_size=1536), placement) for _ in range(2)]


def _choices() -> list[ChoiceSpec]:
    return [make_choice(index, sampling=SamplingParams(seed=seed, **_SAMPLING)) for index, seed in enumerate(_SEEDS)]


async def _run(
    bench: RealBench, choices: Sequence[ChoiceSpec], constrained: bool, others: Sequence[Ask] = (), hook: Hook | None = None
) -> list[Outcome]:
    """What becomes of each choice beside `others`."""
    constraints = [Stripes() for _ in choices] if constrained else []
    bench.submit("n", _PROMPT, max_tokens=_NUM_TOKENS, choices=choices, constraints=constraints)
    bench.turn()
    await bench.run_to_end(others, hook=hook)
    logits = bench.recorder.logits
    return [
        Outcome(bench.front_end.output_of("n", choice.index), logits[choice.sampling.seed], bench.front_end.finished["n", choice.index])
        for choice in choices
    ]


async def _solos(model: Model, constrained: bool) -> list[Outcome]:
    return [(await _run(RealBench(model), [choice], constrained))[0] for choice in _choices()]


@pytest.fixture(scope="module")
def solos(models: list[Model]) -> dict[bool, list[Outcome]]:
    """Each choice alone, by whether it is constrained."""
    return {constrained: asyncio.run(_solos(models[0], constrained)) for constrained in (False, True)}


def _lose_and_return(bench: RealBench, round: int) -> None:
    if round == 9:
        bench.workers[0].jobs.waiting.clear()
        bench.lose(bench.workers[0])


def _hold_and_let_go(bench: RealBench, round: int) -> None:
    if round in (1, 8, 17):
        bench.hold("n")
    if round in (4, 12, 21):
        bench.unhold("n")


EVENTS: dict[str, tuple[Callable[[list[Model]], RealBench], Sequence[Ask], Hook | None]] = {
    "alone": (lambda models: RealBench(models[0]), (), None),
    "without a prefix cache": (lambda models: RealBench(models[0], prefix_caching=False), (), None),
    "beside others, in chunks": (lambda models: RealBench(models[0], max_step_tokens=11), _OTHERS, None),
    "preempted": (lambda models: RealBench(models[0], num_pages=12), _OTHERS, None),
    "moved": (lambda models: RealBench(*models), _OTHERS, _lose_and_return),
    "paused": (lambda models: RealBench(models[0]), _OTHERS, _hold_and_let_go),
}


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("event", EVENTS)
async def test_a_choice_equals_a_request_of_its_own(
    models: list[Model], solos: dict[bool, list[Outcome]], constrained: bool, event: str
) -> None:
    make, others, hook = EVENTS[event]
    bench = make(models)
    for outcome, solo in zip(await _run(bench, _choices(), constrained, others, hook), solos[constrained], strict=True):
        outcome.assert_equals(solo)
    happened = {"preempted": "preemptions", "moved": "worker_losses", "paused": "readmissions"}.get(event)
    assert happened is None or bench.metrics.total(happened)


def test_choices_and_constraints_differ(solos: dict[bool, list[Outcome]]) -> None:
    assert len({tuple(outcome.token_ids) for outcome in (*solos[False], *solos[True])}) == 8
