"""What PyPTO's decode attention keeps between its two kernels, for published models at the worker's defaults."""

import pytest
from harness.kernels.generated_kernels import MODELS

from kernels.scratch import MAX_DECODE_BYTES, MAX_PREFILL_BYTES, PREFILL_STATISTICS, rows_per_launch, scratch_bytes

MIB = 1 << 20
PAGE_TOKENS = 128
MAX_LANES = 256
#: Of each model's config.json.
MAX_POSITIONS = {name: 40960 for name in MODELS if name.startswith("qwen3")} | {
    "smollm2-135m": 8192,
    "smollm2-360m": 8192,
    "smollm2-1.7b": 8192,
    "qwen2.5-7b": 131072,
    "llama-3.1-8b": 131072,
}


def _shape(model):
    return MAX_POSITIONS[model] // PAGE_TOKENS, MODELS[model].heads, MODELS[model].head_dim


def _rows_at_a_time(rows, model):
    return rows_per_launch(rows, *_shape(model), MAX_DECODE_BYTES)


@pytest.mark.parametrize("model", MODELS)
def test_graphs_of_every_published_model_stay_below_256_mib(model):
    """They share their memory, so that the largest counts."""
    largest = max(scratch_bytes(_rows_at_a_time(rows, model), *_shape(model)) for rows in (8, 16, 32, 64, 128, MAX_LANES))
    assert MIB < largest <= MAX_DECODE_BYTES < 256 * MIB


@pytest.mark.parametrize("model", MODELS)
def test_a_chunk_of_a_prompt_has_rows_enough_at_a_time(model):
    assert rows_per_launch(512, *_shape(model), MAX_PREFILL_BYTES, PREFILL_STATISTICS) >= 128


@pytest.mark.parametrize("model", MODELS)
def test_up_to_32_rows_are_one_launch(model):
    assert _rows_at_a_time(32, model) == 32


def test_rows_that_do_not_fit_are_cut_by_a_power_of_two():
    assert _rows_at_a_time(256, "qwen3-14b") == 64
    assert _rows_at_a_time(24, "qwen3-14b") == 24
    assert rows_per_launch(2, num_pages=1 << 20, heads=64, head_dim=128, max_bytes=MIB) == 1
