"""Prometheus' text of a process: those of its samples that say what the service does."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "pypto_serving_"

_TIMEOUT_SECONDS = 3.0
_MAX_BYTES = 16 * 1024 * 1024

#: What counts up, without the prefix: name of the sample, and the label that it is told apart by. All others are summed over.
COUNTERS: Mapping[str, str] = {
    **{f"{name}_total": "" for name in ("prompt_tokens", "generation_tokens", "prefix_query_tokens", "prefix_hit_tokens")},
    **{f"{name}_total": "" for name in ("preemptions", "readmissions", "worker_losses", "replays_exhausted", "numerics_changes")},
    **{f"{name}_total": "" for name in ("link_sessions_resumed", "link_digest_mismatches", "link_resets", "late_refusals")},
    **{f"{name}_bucket": "le" for name in ("time_to_first_token_seconds", "inter_token_seconds", "queue_seconds")},
    "requests_finished_total": "reason",
    "calls_total": "code",
    "step_seconds_count": "",
}
#: What goes up and down.
GAUGES: Mapping[str, str] = {"requests_waiting": "reason", "waiting_tokens": "", "engine_healthy": ""}

_LABELS = {**COUNTERS, **GAUGES}


class MetricsUnreadable(Exception):
    """The metrics of a process cannot be read; the message is one line, without the address."""


class Sample(NamedTuple):
    """A value of a series; `label` is that of COUNTERS or GAUGES."""

    series: str
    name: str
    label: str
    value: float


def metrics_url(text: str) -> str:
    """The address of a process's metrics, whose path is /metrics unless it says another; raises ValueError naming it."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not http://HOST:PORT/metrics")
    return parts._replace(path=parts.path.rstrip("/") or "/metrics").geturl()


def scrape(url: str) -> list[Sample]:
    """Read the metrics at `url`, which takes some 20 ms of a core; raises MetricsUnreadable."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the processes of a service are no matter of proxies
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as response:
            text = response.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise MetricsUnreadable(f"more than {_MAX_BYTES} bytes")
        samples = parse(text.decode())
    except urllib.error.URLError as error:
        raise MetricsUnreadable(str(error.reason)) from error
    except http.client.HTTPException as error:
        raise MetricsUnreadable("it answers, and not with HTTP: is that the port of metrics?") from error
    except (OSError, ValueError) as error:
        raise MetricsUnreadable(str(error) or type(error).__name__) from error
    if not samples:
        raise MetricsUnreadable(f"there is no {PREFIX}... among its metrics: is it a control plane's?")
    return samples


def parse(text: str) -> list[Sample]:
    """The samples that matter here; raises ValueError for what is no Prometheus text."""
    lines = (line for line in text.splitlines() if line.startswith(PREFIX) and _name_of(line) in _LABELS)
    families = text_string_to_metric_families("\n".join(lines))  # of the rest no line is looked at: parsing takes 50 us each
    return [_sample(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def _name_of(line: str) -> str:
    return line.partition(" ")[0].partition("{")[0].removeprefix(PREFIX)


def _sample(full_name: str, labels: Mapping[str, str], value: float) -> Sample:
    name = full_name.removeprefix(PREFIX)
    return Sample(f"{name}{sorted(labels.items())}", name, labels.get(_LABELS[name], ""), value)
