"""transformers, as the judge of our executors, and how far from it they may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


@dataclass(frozen=True)
class Tolerance:
    """Bounds of what separates logits from the oracle's in float32, in parts of the range of the oracle's. docs/semantics.md shows them."""

    largest: float | None  # of all logits; None: a router that is next to a tie may choose another expert, which has no bound
    typical: float  # the median of the rows' means

    def refusal(self, logits: Tensor, expected: Tensor) -> str:
        """What is too far; empty when nothing is."""
        errors = (logits - expected).abs() / (expected.max() - expected.min())
        largest, typical = float(errors.max()), float(errors.mean(-1).median())
        within = typical <= self.typical and (self.largest is None or largest <= self.largest)
        return "" if within and bool(logits.isfinite().all()) else f"largest {largest:.2e}, typical {typical:.2e}, allowed {self}"


#: By device and dtype, for dense models; a device without entries has not been measured.
TOLERANCES = {("cpu", torch.float32): Tolerance(1e-5, 1e-6), ("cpu", torch.bfloat16): Tolerance(0.03, 0.003)}
#: For models with a router.
ROUTED_TOLERANCES = {("cpu", torch.float32): Tolerance(1e-5, 1e-6), ("cpu", torch.bfloat16): Tolerance(None, 0.003)}


class Oracle:
    """The same checkpoint in transformers."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()

    @property
    def tolerances(self) -> dict[tuple[str, torch.dtype], Tolerance]:
        """Those of this model."""
        return ROUTED_TOLERANCES if getattr(self._model.config, "num_experts", 0) else TOLERANCES

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
