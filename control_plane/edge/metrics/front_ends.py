"""What front ends without a metrics port of their own count: told the scheduler, and shown beside what it counts itself."""

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)

LABEL = "frontend"


class RenderedMetrics:
    """Prometheus' text of a registry for the scheduler. It takes a thread some ms, for which nobody waits."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._text = b""

    def latest(self) -> bytes:
        """What the last call has asked for; empty at the first one."""
        text = self._text
        self._thread.submit(self._render)
        return text

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _render(self) -> None:
        self._text = generate_latest(self._registry)


class AllProcesses(Collector):
    """The families of this process and those of front ends, whose samples have the label `frontend`; each family once."""

    def __init__(self, own: Collector, front_ends: Callable[[], Mapping[str, bytes]]) -> None:
        """`front_ends`: Prometheus' text of each, by the value of its label; called on the thread of a scrape."""
        self._own = own
        self._front_ends = front_ends

    def collect(self) -> Iterator[Metric]:
        families = {family.name: _copy(family) for family in self._own.collect()}
        for name, text in sorted(self._front_ends().items()):
            for family in _parsed(name, text):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {LABEL: name, **sample.labels}, sample.value)
        yield from families.values()


def _copy(family: Metric) -> Metric:
    """A family that may be added to: some collectors return the same one each time."""
    copied = Metric(family.name, family.documentation, family.type)
    copied.samples = list(family.samples)
    return copied


def _parsed(name: str, text: bytes) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(text.decode()))
    except ValueError as error:
        _log.error("metrics of a front end left out", extra={LABEL: name, "reason": str(error)})
        return []
