"""What quantization costs in accuracy: `python -m benchmarks.bench_quantization [--model DIR]`.

The text is the language reference that every CPython carries for help() (pydoc_data.topics), cut into pieces; each piece is computed by
itself. Printed are the perplexity, and greedy agreement: at how many places the most likely next token is that of the model as stored.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer
from torch import Tensor

from kernels.quantized import Quantizer
from worker.batch import Batch
from worker.models import LoadOptions, Model, load_model

_PAGE_TOKENS = 16
_DEMO_MODEL = [sys.executable, str(Path(__file__).resolve().parents[1] / "scripts" / "prepare_demo_model.py")]


def pieces_of_text(model: Path, num_pieces: int, num_tokens: int) -> list[list[int]]:
    """The first `num_pieces` pieces of `num_tokens` token ids of the text."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return [ids[first : first + num_tokens] for first in range(0, num_pieces * num_tokens, num_tokens)]


def logits(model: Model, token_ids: Sequence[int]) -> Tensor:
    """Logits [T, vocab] of a sequence of its own."""
    count = len(token_ids)
    num_pages = -(-count // _PAGE_TOKENS)
    groups = range(len(model.cache_groups))
    rows = torch.arange(count)
    batch = Batch(
        token_ids=torch.tensor(token_ids),
        positions=rows,
        last_keys=rows,
        slots=tuple(rows for _ in groups),
        page_tables=tuple(torch.arange(num_pages, dtype=torch.int32)[None] for _ in groups),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        logit_rows=rows,
    )
    return model.logits(model.forward(batch, model.allocate_cache([num_pages for _ in groups])).wanted)


def measure(directory: Path, quantize: str, pieces: Sequence[Sequence[int]]) -> tuple[float, list[Tensor]]:
    """Mean negative logarithm of the probability of each next token, and the most likely tokens of every piece."""
    quantizer = Quantizer.parse(quantize) if quantize else None
    model = load_model(directory, LoadOptions(torch.bfloat16, torch.device("cpu"), _PAGE_TOKENS, quantizer=quantizer))
    total, best = 0.0, []
    for piece in pieces:
        rows = logits(model, piece)[:-1]
        total += torch.nn.functional.cross_entropy(rows, torch.tensor(piece[1:]), reduction="sum").item()
        best.append(rows.argmax(1))
    return total / sum(len(piece) - 1 for piece in pieces), best


def main() -> int:
    """Command line; prints a row of a Markdown table for each quantization."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_quantization", description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face directory (default: the demo model)")
    parser.add_argument("--pieces", type=int, default=32, help="pieces of the text (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a piece (default: %(default)s)")
    parser.add_argument("--quantize", nargs="*", default=["int8", "int4:32"], help="what to measure (default: int8 int4:32)")
    arguments = parser.parse_args()
    model = arguments.model or Path(subprocess.run(_DEMO_MODEL, check=True, capture_output=True, text=True).stdout.strip())
    pieces = pieces_of_text(model, arguments.pieces, arguments.tokens)
    print("| matrices | perplexity | greedy agreement |\n|---|---|---|")
    stored: list[Tensor] = []
    for quantize in ("", *arguments.quantize):
        loss, best = measure(model, quantize, pieces)
        stored = stored or best
        agreement = torch.cat(best).eq(torch.cat(stored)).float().mean().item()
        print(f"| {quantize or 'as stored, bfloat16'} | {math.exp(loss):.3f} | {100 * agreement:.1f} % |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
