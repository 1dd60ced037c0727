"""When an open loop sends its requests: at times drawn for a rate, or those of a trace."""

import json
import random
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_MAX_SECONDS = 86400
_MAX_TOKENS = 2**31 - 1


class Process(StrEnum):
    """How the gaps between arrivals are distributed."""

    POISSON = "poisson"
    BURSTY = "bursty"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate` requests per second on average.

    Gaps of a bursty process are gamma distributed with shape `burstiness`: their coefficient of variation is 1 / sqrt(burstiness),
    and 1 is a Poisson process.
    """

    rate: float
    process: Process = Process.POISSON
    burstiness: float = 0.25
    seed: int = 0

    @property
    def name(self) -> str:
        details = {Process.POISSON: "", Process.BURSTY: f" bursty {self.burstiness:g}", Process.CONSTANT: " constant"}
        return f"rate {self.rate:g}/s{details[self.process]}"

    def times(self, count: int) -> list[float]:
        """Times of `count` arrivals, in seconds from the beginning. The same seed gives the same ones."""
        generator = random.Random(self.seed)
        times = [0.0]
        while len(times) < count:
            times.append(times[-1] + self._gap(generator))
        return times[:count]

    def _gap(self, generator: random.Random) -> float:
        if self.process is Process.CONSTANT:
            return 1.0 / self.rate
        if self.process is Process.BURSTY:
            return generator.gammavariate(self.burstiness, 1.0) / self.burstiness / self.rate
        return generator.expovariate(self.rate)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One line of a trace; `at_seconds` counts from the beginning of the replay."""

    at_seconds: float
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests to replay, at least one, in the order of their times."""

    file_name: str
    requests: tuple[TracedRequest, ...]

    @property
    def name(self) -> str:
        return f"trace {self.file_name}"

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of the prompt and of the answer of each request."""
        return [(request.prompt_tokens, request.max_tokens) for request in self.requests]

    def times(self, count: int) -> list[float]:
        """Times of the first `count` arrivals, in seconds from the beginning."""
        return [request.at_seconds for request in self.requests[:count]]


def read_trace(path: Path) -> Trace:
    """Read JSON lines of at_seconds, prompt_tokens and max_tokens, in any order; other fields are ignored.

    Raises OSError, or ValueError naming line, field, value and limit.
    """
    requests = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if line.strip():
            try:
                requests.append(_traced_request(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from None
    if not requests:
        raise ValueError("there is no request in it")
    return Trace(path.name, tuple(sorted(requests, key=lambda request: request.at_seconds)))


def _traced_request(line: str) -> TracedRequest:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    at_seconds = fields.get("at_seconds")
    if isinstance(at_seconds, bool) or not isinstance(at_seconds, int | float) or not 0 <= at_seconds <= _MAX_SECONDS:
        raise ValueError(f"at_seconds: {json.dumps(at_seconds)} is not a number from 0 to {_MAX_SECONDS}")
    return TracedRequest(float(at_seconds), _tokens(fields, "prompt_tokens"), _tokens(fields, "max_tokens"))


def _tokens(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TOKENS:
        raise ValueError(f"{name}: {json.dumps(value)} is not an integer from 1 to {_MAX_TOKENS}")
    return value
