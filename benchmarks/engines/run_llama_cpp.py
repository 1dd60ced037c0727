"""llama.cpp's decoder on a static batch, in bfloat16: PYTHON benchmarks/engines/run_llama_cpp.py MODEL.gguf"""

import os
import sys
from collections.abc import Sequence

import llama_cpp
import numpy as np
from answering import answer

_MAX_SEQUENCES, _MAX_TOKENS, _MAX_BATCH = 32, 16_384, 512
_THREADS = len(os.sched_getaffinity(0))

llama_cpp.llama_backend_init()
_model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), llama_cpp.llama_model_default_params())
_vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(_model))


def _new_context() -> llama_cpp.llama_context_p:
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_seq_max = _MAX_TOKENS, _MAX_SEQUENCES
    parameters.n_batch = parameters.n_ubatch = _MAX_BATCH
    parameters.kv_unified = True
    parameters.n_threads = parameters.n_threads_batch = _THREADS
    return llama_cpp.llama_init_from_model(_model, parameters)


_context = _new_context()
_batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)


def _decode(rows: Sequence[tuple[int, int, int, bool]]) -> None:
    """Rows of (token id, position, sequence, whether its logits are wanted)."""
    _batch.n_tokens = len(rows)
    for index, (token_id, position, sequence, wanted) in enumerate(rows):
        _batch.token[index], _batch.pos[index], _batch.n_seq_id[index] = token_id, position, 1
        _batch.seq_id[index][0], _batch.logits[index] = sequence, wanted
    assert llama_cpp.llama_decode(_context, _batch) == 0


def _best(row: int) -> int:
    logits = llama_cpp.llama_get_logits_ith(_context, row)
    return int(np.ctypeslib.as_array(logits, (_vocab_size,)).argmax())


def _generate(prompts: Sequence[list[int]], max_tokens: int) -> None:
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(_context), False)
    rows = [
        (token_id, position, sequence, position == len(prompt) - 1)
        for sequence, prompt in enumerate(prompts)
        for position, token_id in enumerate(prompt)
    ]
    tokens: dict[int, int] = {}
    for first in range(0, len(rows), _MAX_BATCH):
        chunk = rows[first : first + _MAX_BATCH]
        _decode(chunk)
        tokens |= {sequence: _best(index) for index, (_, _, sequence, wanted) in enumerate(chunk) if wanted}
    for index in range(max_tokens - 1):
        _decode([(tokens[sequence], len(prompt) + index, sequence, True) for sequence, prompt in enumerate(prompts)])
        tokens = {sequence: _best(sequence) for sequence in tokens}


answer(_generate, _vocab_size)
