"""Draws the levels of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients.cli.command import UsageError
from pypto_serving.process.start_up import StartUpError, needs_extra

if TYPE_CHECKING:
    from clients.bench.summary import Distribution
    from clients.bench.sweep import LevelOutcome

_PANEL_INCHES = (5.0, 4.0)
_DOTS_PER_INCH = 120


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; each of `lines` is points that are joined in the order of the levels."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[float, float]]]
    names: list[str]  # of the levels, beside the points of the first line
    is_logarithmic: bool = True


def check_matplotlib() -> None:
    """Raise UsageError where nothing can be drawn."""
    try:
        with needs_extra("plots"):
            import matplotlib  # noqa: F401
    except StartUpError as error:
        raise UsageError(f"--plot: {error}") from None


def panels(outcomes: "Sequence[LevelOutcome]") -> list[Panel]:
    """Latencies against throughput, and goodput against rate where there are limits of it; levels without a figure are left out."""
    drawn = [
        _latency("TTFT", [(outcome, outcome.summary.first_token) for outcome in outcomes]),
        _latency("TPOT", [(outcome, outcome.summary.per_token) for outcome in outcomes]),
    ]
    limits = [outcome.summary.goodput.limits for outcome in outcomes if outcome.summary.goodput]
    return [*drawn, _goodput(f"goodput: {limits[0]}", outcomes)] if limits else drawn


def _latency(name: str, levels: "Sequence[tuple[LevelOutcome, Distribution | None]]") -> Panel:
    known = [(outcome.summary, distribution) for outcome, distribution in levels if distribution]
    return Panel(
        title=name,
        x_label="output tokens per second",
        y_label="milliseconds",
        lines={
            quantile: [(summary.output_tokens_per_second, getattr(distribution, quantile) * 1000) for summary, distribution in known]
            for quantile in ("p50", "p99")
        },
        names=[summary.level for summary, _ in known],
    )


def _goodput(title: str, outcomes: "Sequence[LevelOutcome]") -> Panel:
    sent = [outcome.rate or outcome.summary.num_requests / outcome.summary.seconds for outcome in outcomes]
    reached = [outcome.summary.goodput.requests_per_second if outcome.summary.goodput else 0.0 for outcome in outcomes]
    return Panel(
        title=title,
        x_label="requests per second that are sent",
        y_label="requests per second",
        lines={"within the limits": list(zip(sent, reached, strict=True)), "all": list(zip(sent, sent, strict=True))},
        names=[outcome.summary.level for outcome in outcomes],
        is_logarithmic=False,
    )


def write_plot(path: Path, title: str, drawn: Sequence[Panel]) -> None:
    """Write `drawn` beside each other, in the format of the file's ending."""
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(drawn), height), dpi=_DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        _draw(axes, panel)
    figure.savefig(path)


def _draw(axes: Any, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.is_logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    for name, points in panel.lines.items():
        axes.plot(*zip(*points, strict=True) if points else ([], []), marker="o", label=name)
    for name, point in zip(panel.names, next(iter(panel.lines.values())), strict=True):
        axes.annotate(name, point, textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    axes.grid(alpha=0.3)
    axes.legend()
