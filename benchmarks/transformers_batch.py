"""What serving is measured against: transformers' generate on a static batch."""

import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class TransformersBatch:
    """A model of transformers on the CPU, in bfloat16, as users have it by default."""

    def __init__(self, model: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)

    @torch.inference_mode()
    def tokens_per_second(self, streams: int, prompt_tokens: int, max_tokens: int) -> float:
        """Generated tokens per second of one batch of `streams` greedy sequences of fixed lengths, prefill included."""
        prompts = torch.randint(
            0, self._model.config.vocab_size, (streams, prompt_tokens), generator=torch.Generator().manual_seed(streams)
        )
        begun = time.perf_counter()
        self._model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False
        )
        return streams * max_tokens / (time.perf_counter() - begun)
