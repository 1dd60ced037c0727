"""The tiny checkpoints themselves."""

import json

import pytest
import torch
from harness.checkpoints import ARCHITECTURES, CHAT_TEMPLATE, TinyCheckpoint, make_checkpoint
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_weights_have_the_asked_type(arch: str, tiny_checkpoint: TinyCheckpoint) -> None:
    directory = tiny_checkpoint(arch, "bfloat16")
    assert {tensor.dtype for tensor in load_file(directory / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((directory / "config.json").read_text())["architectures"] == [ARCHITECTURES[arch]]


def test_same_seed_gives_the_same_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    first, second = (make_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3") for _ in range(2))
    assert all((second / path.name).read_bytes() == path.read_bytes() for path in first.iterdir())


def test_tokenizer_round_trip(tiny_checkpoint: TinyCheckpoint) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_checkpoint("llama"))
    text = "Grüße, naïve façade: 4567 🙂\n\n  x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.chat_template) == (1024, 2, CHAT_TEMPLATE)
