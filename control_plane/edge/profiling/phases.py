"""What a choice of a request spends its time on."""

from control_plane.engine.request import LiveChoice


def choice_phases(choice: LiveChoice, now: float) -> list[tuple[str, float, float]]:
    """Name, begin and end of each phase that it has come to, the first one at its arrival; in seconds of the engine's clock."""
    arrival = min(choice.request.spec.arrival_time, now)
    started = _between(arrival, choice.sequence.first_scheduled_time, now)
    first_token = _between(started, choice.first_token_time, now)
    phases = [("queue", arrival, started), ("prefill", started, first_token), ("decode", first_token, now)]
    return [phase for phase in phases if phase[1] < phase[2]] or phases[:1]


def _between(low: float, value: float | None, high: float) -> float:
    return high if value is None else min(max(low, value), high)
