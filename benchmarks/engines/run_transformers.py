"""transformers' generate on a static batch, in bfloat16: PYTHON benchmarks/engines/run_transformers.py MODEL"""

import sys
from collections.abc import Sequence

import torch
from answering import answer
from transformers import AutoModelForCausalLM

_model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)


@torch.inference_mode()
def _generate(prompts: Sequence[list[int]], max_tokens: int) -> None:
    batch = torch.tensor(prompts)
    mask = torch.ones_like(batch)
    _model.generate(batch, attention_mask=mask, max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False)


answer(_generate, _model.config.vocab_size)
