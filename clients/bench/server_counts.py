"""What the server counted, from its Prometheus endpoint."""

import asyncio
import re
import urllib.request
from dataclasses import dataclass

_TIMEOUT_SECONDS = 5.0
_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{.*\})? (?P<value>\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of prompts, and tokens generated."""

    prompt: int
    generation: int

    def __sub__(self, earlier: "TokenCounts") -> "TokenCounts":
        return TokenCounts(self.prompt - earlier.prompt, self.generation - earlier.generation)


class CountsUnreadable(Exception):
    """The server's counts cannot be read; the message is one line."""


async def scrape(url: str) -> TokenCounts:
    """Read the counters at `url`; raises CountsUnreadable when it does not answer, or they are not there."""

    def fetch() -> str:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            return str(response.read(), "utf-8")

    try:
        return parse(await asyncio.to_thread(fetch))
    except (OSError, ValueError) as error:
        raise CountsUnreadable(f"{url}: {error}") from error


def parse(exposition: str) -> TokenCounts:
    """The counters in Prometheus' text format, summed over their labels; raises ValueError naming one that is missing."""
    return TokenCounts(_total(exposition, "pypto_serving_prompt_tokens_total"), _total(exposition, "pypto_serving_generation_tokens_total"))


def _total(exposition: str, name: str) -> int:
    values = [float(sample["value"]) for sample in _SAMPLE.finditer(exposition) if sample["name"] == name]
    if not values:
        raise ValueError(f"there is no {name}")
    return int(sum(values))
