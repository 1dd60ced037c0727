"""What boards, rules and alerts ask Prometheus for, and a Prometheus that scrapes our processes."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.processes import fixed_ports

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = DEPLOY / "grafana" / "pypto-serving.json"
_RULES = DEPLOY / "prometheus"
_NAME = re.compile(r"(?<![\w:])((?:\w+:)?(?:pypto_serving|process)_\w+(?::\w+)?)")
_SECONDS = 60.0


def debian_program(name: str, package: str) -> str:
    """Path of a program; the test is skipped where Debian's package of it is not installed."""
    return shutil.which(name) or pytest.skip(f"no {name}: apt-get install {package}")


def rules() -> list[dict[str, Any]]:
    """All recording and alert rules."""
    files = [yaml.safe_load((_RULES / name).read_text()) for name in ("recording.yml", "alerts.yml")]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def adapter_queries() -> list[str]:
    """What an adapter for autoscalers asks for."""
    values = yaml.safe_load((_RULES / "adapter.yml").read_text())
    return [rule["metricsQuery"] for rule in values["rules"]["external"]]


def board_expressions() -> list[str]:
    """PromQL of every panel, with variables set as Grafana does: all cells, a rate over a minute."""
    board = json.loads(BOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [expression.replace("$cell", ".*").replace("$__rate_interval", "1m") for expression in found]


def names_in(expression: str) -> set[str]:
    """Names of metrics of ours, of processes, and of what rules record."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', "", expression)))


class Prometheus:
    """One that runs; queries raise for what it refuses."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def names(self) -> set[str]:
        """Names of all series."""
        return set(self._get("label/__name__/values"))

    def wait_for(self, expression: str, count: int) -> None:
        """Wait until an expression has so many series."""
        deadline = time.monotonic() + _SECONDS
        while len(found := self._query_or_none(expression)) < count:
            assert time.monotonic() < deadline, f"{expression}: {found}"
            time.sleep(0.2)

    def _query_or_none(self, expression: str) -> list[dict[str, Any]]:
        try:
            return self.query(expression)
        except OSError:  # it starts
            return []

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]


@contextmanager
def scraping(program: str, folder: Path, targets: Mapping[str, list[str]]) -> Iterator[Prometheus]:
    """Our configuration and rules, with shorter intervals, and host:port of real processes by job; other jobs are left out."""
    config = yaml.safe_load((_RULES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(_RULES / name) for name in config["rule_files"]]
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] in targets]
    for job in config["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{**job.get("static_configs", [{}])[0], "targets": targets[job["job_name"]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{fixed_ports(1)[0]}"
    flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}")
    with (folder / "log").open("w") as log, subprocess.Popen([program, *flags], stderr=log) as process:
        try:
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
