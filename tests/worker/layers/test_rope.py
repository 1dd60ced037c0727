"""Numbers of the rules for scaled rotary embeddings."""

from pathlib import Path
from typing import Any

import torch

from worker.checkpoint.config_fields import ConfigFields
from worker.layers.rope import Rope, read_rope


def rope(head_dim: int = 128, **fields: Any) -> Rope:
    return read_rope(ConfigFields(Path("config.json"), {"max_position_embeddings": 131072, **fields}), head_dim)


def test_mod_07_llama3_stretches_long_wavelengths_only() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = rope(rope_theta=500000.0, rope_scaling=scaling).inverse_frequencies
    ratios = scaled / rope(rope_theta=500000.0).inverse_frequencies
    assert torch.equal(ratios[:29], torch.ones(29))
    assert torch.allclose(ratios[[29, 31, 34]], torch.tensor([0.8282, 0.4935, 0.1902]), atol=1e-4)
    assert torch.equal(ratios[35:], torch.full((29,), 0.125))


def test_table_begins_without_rotation() -> None:
    cosines, sines = rope(head_dim=8).table(torch.device("cpu"))
    assert cosines.shape == sines.shape == (131072, 4)
    assert torch.equal(cosines[0], torch.ones(4)) and torch.equal(sines[0], torch.zeros(4))


def test_mod_05_type_may_be_spelt_both_ways_at_once() -> None:
    both = {"type": "linear", "rope_type": "linear", "factor": 2.0}
    expected = rope(rope_scaling={"rope_type": "linear", "factor": 2.0}).inverse_frequencies
    assert torch.equal(rope(rope_scaling=both).inverse_frequencies, expected)


def test_mod_07_attention_factor_scales_the_table() -> None:
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 65536, "attention_factor": 1.25}
    cosines, _ = rope(head_dim=8, rope_scaling=scaling).table(torch.device("cpu"))
    assert torch.equal(cosines[0], torch.full((4,), 1.25))
