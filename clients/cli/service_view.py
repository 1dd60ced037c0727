"""How the state of a service is shown: as lines, and as tables that fill a terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clients.service_state.state import Activity, ControlPlaneState, Percentiles, ServiceState, WorkerState

_BAR_CELLS = 24


def lines(state: "ServiceState") -> list[str]:
    """One line for each control plane, worker and source that could not be read, and a few for what happens."""
    shown = []
    for plane in state.control_planes:
        shown.append(f"control plane {plane.target}: {_plane(plane)}")
        shown += [f"  worker {worker.address}: {_worker(worker)}" for worker in plane.workers] or ["  no worker"]
    if state.activity is not None:
        shown += [f"{name:15}{value}" for name, value in _activity(state.activity)]
    return [*shown, *(f"{source} cannot be read: {why}" for source, why in state.failures.items())]


def _plane(plane: "ControlPlaneState") -> str:
    parts = [f"{plane.num_running} running", f"{plane.num_waiting} waiting", f"{plane.num_held} held", f"{plane.num_calls} calls"]
    parts += [f"{plane.num_held_back} wait for the first worker"] * bool(plane.num_held_back) + ["draining"] * plane.is_draining
    return ", ".join(parts)


def _worker(worker: "WorkerState") -> str:
    if worker.phase != "in_session":
        return f"{worker.phase}: {worker.trouble}" if worker.trouble else worker.phase
    pages = worker.pages
    used = f"{pages.referenced} pages used, {pages.cached} cached, {pages.free} free, {pages.fenced} fenced"
    return f"{worker.num_running} running, {worker.steps_in_flight} steps in flight, {used}"


def _activity(activity: "Activity") -> Iterable[tuple[str, str]]:
    if not activity.is_healthy:
        yield "engine", "NOT healthy"
    if rates := activity.rates:
        yield "requests/s", f"{rates.requests:.1f}"
        yield "tokens/s", f"{rates.generation_tokens:.1f} generated, {rates.prompt_tokens:.1f} of prompts, in {rates.steps:.1f} steps/s"
    yield "first token", _times(activity.time_to_first_token)
    yield "between tokens", _times(activity.inter_token)
    yield "in the queue", _times(activity.queue)
    if activity.prefix_hit_ratio is not None:
        yield "prefix hits", f"{activity.prefix_hit_ratio:.0%} of prompt tokens"
    for name, counts in (("errors", activity.errors), ("incidents", activity.incidents)):
        recent = [f"{count.name} {count.recent} ({count.total} in all)" for count in counts if count.recent]
        if recent:
            yield name, ", ".join(recent) + " in the last minute"


def _times(times: "Percentiles | None") -> str:
    if times is None:
        return "-"
    return f"{_seconds(times.p50)} median, {_seconds(times.p90)} p90, {_seconds(times.p99)} p99"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def tables(state: "ServiceState") -> "RenderableType":
    """For a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    workers = Table("worker", "phase", "running", "in flight", "pages", "free", "cached", "used", expand=True, box=None)
    for worker in state.workers:
        pages, style = worker.pages, "" if worker.phase == "in_session" else "red"
        numbers = (worker.num_running, worker.steps_in_flight, _bar(pages.referenced, pages.cached, pages.total))
        row = [worker.address, worker.trouble or worker.phase, *map(str, (*numbers, pages.free, pages.cached, pages.referenced))]
        workers.add_row(*map(Text, row), style=style)  # what a service says is no markup
    facts = Table("", "", show_header=False, box=None)
    for name, value in _activity(state.activity) if state.activity else ():
        facts.add_row(Text(name), Text(value))
    planes = [Text(f"{plane.target}: {_plane(plane)}", style="bold") for plane in state.control_planes]
    failures = [Text(f"{source} cannot be read: {why}", style="red") for source, why in state.failures.items()]
    return Group(*planes, Text(), workers, Text(), facts, *failures, Text("\nCtrl-C ends this", style="dim"))


def _bar(used: int, cached: int, total: int) -> str:
    """Of pages: those in use, those that are cached, the rest."""
    if not total:
        return ""
    num_used, num_cached = round(_BAR_CELLS * used / total), round(_BAR_CELLS * (used + cached) / total)
    return "█" * num_used + "▒" * (num_cached - num_used) + "·" * (_BAR_CELLS - num_cached)
