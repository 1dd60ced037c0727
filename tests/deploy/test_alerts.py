"""Every alert fires on what it is for, and none on a service that is well; promtool evaluates them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.monitoring import BOARD, DEPLOY, debian_program, names_in, rules

P = "pypto_serving_"


def _histogram(name: str, low: float, high: float) -> dict[str, str]:
    """Series of a histogram whose values are all between two bounds."""
    return {f'{P}{name}_bucket{{le="{bound}"}}': values for bound, values in ((low, "0x90"), (high, "0+9x90"), ("+Inf", "0+9x90"))}


#: Series of a service that is well, each with its values once a minute; `0+10x90`: from 0, 10 more each time.
WELL = {
    'up{job="pypto-serving-worker"}': "1x90",
    f"{P}workers": "2x90",
    f"{P}engine_healthy": "1x90",
    f"{P}requests_received_total": "0+600x90",
    f"{P}preemptions_total": "0+6x90",
    f"{P}device_seconds_sum": "0+50x90",
    f"{P}device_idle_seconds_sum": "0+5x90",
    f'{P}link_in_session{{worker="w"}}': "1x90",
    f'{P}link_resets_total{{worker="w"}}': "0x20 1x70",
    f'{P}requests_waiting{{reason="worker"}}': "0x90",
    f'{P}calls_total{{code="resource_exhausted"}}': "0+1x90",
    f'{P}requests_finished_total{{reason="reader_too_slow"}}': "0x90",
    f'{P}requests_finished_total{{reason="over_quota"}}': "0+1x90",
    f'{P}key_refusals_total{{key="acme",quota="tokens"}}': "0+1x90",
    'process_open_fds{job="pypto-serving-control"}': "70x90",
    'process_max_fds{job="pypto-serving-control"}': "100x90",
}

#: What goes wrong, by the alert that says so.
TROUBLE = {
    "Down": {'up{job="pypto-serving-worker"}': "0x90"},
    "NoWorker": {f"{P}workers": "0x90"},
    "WorkerLost": {f'{P}link_in_session{{worker="w"}}': "0x90"},
    "WaitingForWorker": {f'{P}requests_waiting{{reason="worker"}}': "3x90"},
    "QueueSlow": _histogram("queue_seconds", 10, 25),
    "RefusedForLoad": {f'{P}calls_total{{code="resource_exhausted"}}': "0+60x90"},
    "OverQuota": {
        f'{P}calls_total{{code="resource_exhausted"}}': "0+61x90",
        f'{P}requests_finished_total{{reason="over_quota"}}': "0+60x90",
        f'{P}key_refusals_total{{key="acme",quota="tokens"}}': "0+60x90",
    },
    "InternalErrors": {f'{P}calls_total{{code="internal"}}': "0x87 1x3"},
    "EngineUnhealthy": {f"{P}engine_healthy": "0x90"},
    "RequestsKillWorkers": {f"{P}replays_exhausted_total": "0x87 1x3"},
    "SlowReaders": {f'{P}requests_finished_total{{reason="reader_too_slow"}}': "0+2x90"},
    "Preemptions": {f"{P}preemptions_total": "0+120x90"},
    "StatesDiverge": {f'{P}link_digest_mismatches_total{{worker="w"}}': "0x87 1x3"},
    "LateRefusals": {f"{P}late_refusals_total": "0x88 5x2"},
    "LoopLag": _histogram("engine_loop_lag_seconds", 0.1, 0.25),
    "DeviceIdle": {f"{P}device_idle_seconds_sum": "0+20x90"},
    "LaneErrors": {f"{P}worker_lane_errors_total": "0x87 1x3"},
    "WorkerOrphaned": {f'{P}worker_session_state{{state="free"}}': "1x90"},
    "CredentialsRefused": {f'{P}worker_credential_reloads_total{{outcome="refused"}}': "0x87 1x3"},
    "FileDescriptors": {'process_open_fds{job="pypto-serving-control"}': "90x90"},
}


def _firing(folder: Path, series: dict[str, str], alerts: list[str]) -> None:
    """Assert what fires after 90 minutes."""
    samples = [{"labels": f'{{alertname="PyptoServing{name}"}}', "value": 1} for name in alerts]
    question = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "90m", "exp_samples": samples}
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [question],
    }
    paths = [str(DEPLOY / "prometheus" / name) for name in ("recording.yml", "alerts.yml")]
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": paths, "evaluation_interval": "1m", "tests": [test]}))
    program = debian_program("promtool", "prometheus")
    done = subprocess.run([program, "test", "rules", str(folder / "test.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    _firing(tmp_path, WELL, [])


@pytest.mark.parametrize("alert", sorted(TROUBLE))
def test_trouble_fires_its_alert_alone(tmp_path: Path, alert: str) -> None:
    _firing(tmp_path, WELL | TROUBLE[alert], [alert])


def test_every_alert_is_tried() -> None:
    assert {rule["alert"].removeprefix("PyptoServing") for rule in rules() if "alert" in rule} == set(TROUBLE)


def test_promtool_accepts_configuration_and_rules() -> None:
    program = debian_program("promtool", "prometheus")
    done = subprocess.run([program, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")], capture_output=True, text=True)
    assert done.returncode == 0 and "2 rule files found" in done.stdout, done.stdout + done.stderr


def test_the_board_has_panels_side_by_side_that_ask_for_something() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or all(names_in(target["expr"]) for target in panel["targets"])
