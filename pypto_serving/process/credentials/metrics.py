"""Counts how often credentials were read anew."""

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from pypto_serving.process.credentials.files import ReloadedFiles


class CredentialCollector(Collector):
    """Outcomes of reloads. A scrape looks at the files, so that a broken one is noticed although nobody connects."""

    def __init__(self, prefix: str, watched: Sequence[ReloadedFiles[Any]]) -> None:
        self._prefix = prefix
        self._watched = tuple(watched)

    def collect(self) -> Iterator[Metric]:
        documentation = "Changes of credential files, by whether they could be used."
        family = CounterMetricFamily(f"{self._prefix}credential_reloads", documentation, labels=["credentials", "outcome"])
        for files in self._watched:
            files.current()
            family.add_metric([files.name, "ok"], files.num_reloads)
            family.add_metric([files.name, "refused"], files.num_refusals)
        yield family
