"""The bounds that tests use are those that users are told."""

from pathlib import Path

import torch
from harness.oracle import ROUTED_TOLERANCES, TOLERANCES, Tolerance

_PAGE = Path(__file__).parents[3] / "docs" / "semantics.md"


def _row(device: str, dtype: torch.dtype, model: str, bound: Tolerance) -> str:
    largest = "no bound" if bound.largest is None else bound.largest
    return f"| {device} | {str(dtype).removeprefix('torch.')} | {model} | {largest} | {bound.typical} |"


def test_the_documentation_shows_every_tolerance() -> None:
    models = {"dense": TOLERANCES, "with a router": ROUTED_TOLERANCES}
    rows = {_row(device, dtype, model, bound) for model, bounds in models.items() for (device, dtype), bound in bounds.items()}
    assert rows == {line for line in _PAGE.read_text().splitlines() if line.startswith(("| cpu ", "| cuda ", "| npu "))}
