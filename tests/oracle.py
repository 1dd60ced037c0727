"""transformers, as the judge of our executors."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


class Oracle:
    """The same checkpoint in transformers."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits of all tokens: [tokens, vocab] float32."""
        return self._model(torch.tensor([token_ids])).logits[0].float()

    def greedy(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """The tokens that follow."""
        prompt = torch.tensor([token_ids])
        limits = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
        generated = self._model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, pad_token_id=0, **limits)
        return generated[0, len(token_ids) :].tolist()


def relative_difference(logits: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the range of the expected logits."""
    return float((logits - expected).abs().max() / (expected.max() - expected.min()))
