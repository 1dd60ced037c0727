"""Tokens and logits of a request are the same, bit for bit, beside any others, in chunks, over reused pages, readmitted, replayed
or not, with one step in flight or two."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fakes.device.steps import step
from harness.accelerator_runs import KIND, NUM_GENERATED, PAGE, PAGES_PER_LANE, Accelerator, Drawn, Run, assert_same, request
from harness.checkpoints import TinyCheckpoint
from safetensors.torch import load_file, save_file

from worker.decode_graphs import GraphShape
from worker.models import Model
from worker.step import LaneAdmission, LaneSampling

_NUM_LANES = 20
_LOOKED_AT = range(11)
# Widths that sequences outgrow while they decode, and row counts that neither begin nor end where the lanes do.
_SHAPES = tuple(GraphShape(rows, tokens) for rows in (8, 24) for tokens in (PAGE + 8, PAGE * 4, PAGE * PAGES_PER_LANE))
_MODELS = [("qwen3", "float32"), ("qwen3", "bfloat16"), ("llama", "bfloat16"), ("qwen2", "bfloat16"), ("qwen3_moe", "bfloat16")]


@pytest.fixture(scope="module", params=[model for model in _MODELS if KIND != "npu" or model[1] == "bfloat16"], ids="-".join)
def model(request: pytest.FixtureRequest, accelerator: Accelerator, tiny_checkpoint: TinyCheckpoint) -> Model:
    return accelerator.load(tiny_checkpoint(*request.param), request.param[1])


@pytest.fixture(scope="module")
def launching(accelerator: Accelerator, model: Model) -> Run:
    return Run(model, _NUM_LANES, accelerator)


@pytest.fixture(scope="module")
def replaying(accelerator: Accelerator, model: Model) -> Run:
    if not model.is_capturable:
        pytest.skip("the experts cannot be captured")
    return Run(model, _NUM_LANES, accelerator, _SHAPES)


@pytest.fixture(scope="module")
def launching_ahead(accelerator: Accelerator, model: Model) -> Run:
    """Two steps in flight: the host reads tokens when the next step is launched."""
    return Run(model, _NUM_LANES, accelerator, steps_in_flight=2)


@pytest.fixture(scope="module")
def replaying_ahead(accelerator: Accelerator, model: Model) -> Run:
    if not model.is_capturable:
        pytest.skip("the experts cannot be captured")
    return Run(model, _NUM_LANES, accelerator, _SHAPES, steps_in_flight=2)


@pytest.fixture(scope="module", params=["launching", "replaying", "launching_ahead", "replaying_ahead"])
def run(request: pytest.FixtureRequest, model: Model) -> Run:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def alone(launching: Run) -> Drawn:
    """What each lane draws by itself, every kernel launched."""
    results = [launching([request(lane)]) for lane in _LOOKED_AT]
    return {lane: drawn for tokens, _ in results for lane, drawn in tokens.items()}, {
        lane: drawn for _, logits in results for lane, drawn in logits.items()
    }


@pytest.fixture(autouse=True)
def count_replays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever replays does replay."""
    name = next((name for name in ("replaying_ahead", "replaying") if name in request.node.name), None)
    before = request.getfixturevalue(name).num_replayed if name else 0
    yield
    assert not name or request.getfixturevalue(name).num_replayed > before


@pytest.mark.parametrize("num_lanes", [1, 7, 8, 9, 20])
def test_other_sequences_change_nothing(run: Run, alone: Drawn, num_lanes: int) -> None:
    assert_same(run([request(lane) for lane in range(num_lanes)]), alone)


@pytest.mark.parametrize("chunk_tokens", [1, 7, PAGE])
def test_chunks_change_nothing(run: Run, alone: Drawn, chunk_tokens: int) -> None:
    assert_same(run([request(lane) for lane in _LOOKED_AT], chunk_tokens), alone)


@pytest.mark.parametrize("num_generated", [1, 5])
def test_preempted_and_readmitted_sequence_goes_on(run: Run, alone: Drawn, num_generated: int) -> None:
    assert_same(run([request(lane, alone[0][lane][:num_generated]) for lane in _LOOKED_AT], PAGE), alone, num_generated)


def test_pages_of_a_prefix_may_be_reused(run: Run, alone: Drawn) -> None:
    run([request(lane) for lane in _LOOKED_AT])
    lanes = [lane for lane in _LOOKED_AT if len(request(lane).token_ids) > PAGE]
    assert_same(run([request(lane, num_computed_tokens=PAGE) for lane in lanes]), alone)


def test_what_pages_held_before_changes_nothing(run: Run, alone: Drawn) -> None:
    run.poison()
    assert_same(run([request(lane) for lane in range(9)]), alone)


def test_padding_writes_to_the_scratch_page_only(run: Run) -> None:
    run.poison()
    run([request(0, length=PAGE - 1)])  # decodes from the end of a page into the next one
    for tensor in (*run.cache.keys, *run.cache.values):
        written = [page for page in range(len(tensor) - 1) if not tensor[page].isnan().all()]
        assert written == [0, 1]


def test_prompts_that_are_reported_token_by_token_are_the_same(launching: Run, replaying: Run) -> None:
    requests = [request(lane, sampling=LaneSampling(prompt_logprobs=2)) for lane in (2, 3, 9)]
    told = [_told(run, requests) for run in (launching, replaying)]
    assert len(told[0]) == len(requests[0].token_ids) - 1 and told[0] == told[1]


def _told(run: Run, requests: list[LaneAdmission]) -> list[tuple[object, ...]]:
    """What steps of one token per lane tell about the prompt of the first request."""
    run.runner.reset()
    told = []
    with run.operators():
        for index in range(len(requests[0].token_ids)):
            output = run.runner.execute(
                step(index + 1, dict.fromkeys((2, 3, 9), 1) if index == 0 else {2: 1}, admissions=requests[: 3 * (not index)])
            )
            told += [report for report in output.prompt_logprobs if report.lane == requests[0].lane]
    return [(report.first_index, report.logprobs.tolist(), report.top_token_ids.tolist()) for report in told]


@pytest.mark.parametrize("window", [8, 40])
def test_windows_change_nothing(accelerator: Accelerator, tiny_checkpoint: TinyCheckpoint, window: int) -> None:
    sliding = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    model = accelerator.load(tiny_checkpoint("qwen2", "bfloat16", **sliding), "bfloat16")
    launched = Run(model, 9, accelerator)
    replayed = Run(model, 9, accelerator, _SHAPES)
    alone = launched([request(5, num_groups=2)])
    assert_same(replayed([request(lane, num_groups=2) for lane in range(9)], 7), alone)


@pytest.fixture(scope="module")
def poisonous(accelerator: Accelerator, tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that makes NaN of token 0, which padding rows have."""
    directory: Path = tmp_path_factory.mktemp("poisonous") / "llama"
    shutil.copytree(tiny_checkpoint("llama", "bfloat16", tie_word_embeddings=False), directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][0] = torch.nan
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return accelerator.load(directory, "bfloat16")


@pytest.mark.parametrize("num_lanes", [1, 3, 9])
def test_padding_of_nan_reaches_no_row(accelerator: Accelerator, poisonous: Model, num_lanes: int) -> None:
    requests = [request(lane) for lane in range(num_lanes)]
    launched = Run(poisonous, _NUM_LANES, accelerator, warms_up=False)(requests)
    run = Run(poisonous, _NUM_LANES, accelerator, _SHAPES, warms_up=False)
    replayed = run(requests)
    assert run.num_replayed == NUM_GENERATED - 1
    assert all(logits.isfinite().all() for lane in launched[1].values() for logits in lane)
    assert_same(replayed, launched)


def test_sequences_that_no_graph_has_room_for_are_launched(accelerator: Accelerator, model: Model, alone: Drawn) -> None:
    if not model.is_capturable:
        pytest.skip("the experts cannot be captured")
    run = Run(model, _NUM_LANES, accelerator, (GraphShape(8, PAGE),))
    num_replayed = run.num_replayed
    assert_same(run([request(lane) for lane in range(9)]), alone)
    assert run.num_replayed == num_replayed
    assert_same(run([request(lane) for lane in (2, 4)]), alone)
    assert run.num_replayed == num_replayed


def test_small_model_is_the_same_beside_others(accelerator: Accelerator, checkpoint: Callable[[str, str], Path]) -> None:
    model = accelerator.load(checkpoint("0.6B", "bfloat16"), "bfloat16")
    launched = Run(model, _NUM_LANES, accelerator)
    replayed = Run(model, _NUM_LANES, accelerator, _SHAPES)
    alone = launched([request(4)])
    for run in (launched, replayed):
        for lanes in ([4], range(9), range(_NUM_LANES)):
            assert_same(run([request(lane) for lane in lanes], 16), alone)
