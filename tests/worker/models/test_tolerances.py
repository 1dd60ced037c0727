"""The bounds that tests use are those that users are told."""

from pathlib import Path

from oracle import ROUTED_TOLERANCES, TOLERANCES

_PAGE = Path(__file__).parents[3] / "docs" / "semantics.md"


def test_the_documentation_shows_every_tolerance() -> None:
    models = {"dense": TOLERANCES, "with a router": ROUTED_TOLERANCES}
    rows = {
        f"| {device} | {str(dtype).removeprefix('torch.')} | {model} | {'no bound' if bound.largest is None else bound.largest} | {bound.typical} |"
        for model, bounds in models.items()
        for (device, dtype), bound in bounds.items()
    }
    assert rows == {line for line in _PAGE.read_text().splitlines() if line.startswith(("| cpu ", "| cuda ", "| npu "))}
