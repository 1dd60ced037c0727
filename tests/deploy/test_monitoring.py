"""A real Prometheus with our configuration and rules, that scrapes real processes of every kind."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from harness.checkpoints import TinyCheckpoint
from harness.monitoring import Prometheus, adapter_queries, board_expressions, debian_program, names_in, rules, scraping
from harness.processes import ServingProcess, control_plane, worker

from clients import Client, Credentials

pytestmark = pytest.mark.slow

#: They have no series as long as nothing of the kind happens, or need traffic from more than five minutes ago.
_SILENT = ("> 0",)


def _target(process: ServingProcess) -> str:
    return urlsplit(process.metrics_url).netloc


@pytest.fixture(scope="module")
def watched(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus, after some requests, with every rule evaluated."""
    program = debian_program("prometheus", "prometheus")
    model, folder = tiny_checkpoint("llama"), tmp_path_factory.mktemp("prometheus")
    (folder / "keys").write_text("key-of-a-test\n")
    flags = ("--frontends", "2", "--vllm-metrics", "--api-keys-file", str(folder / "keys"))
    with worker(model) as first, worker(model) as second, control_plane(model, [first, second], *flags) as control:
        control.wait_until_ready()
        targets = {"pypto-serving-control": [_target(control)], "pypto-serving-worker": [_target(first), _target(second)]}
        with (
            scraping(program, folder, targets) as found,
            Client(control.address, credentials=Credentials(api_key="key-of-a-test")) as client,
        ):
            found.wait_for("up == 1", 3)
            found.wait_for('count by (frontend) (pypto_serving_calls_total{frontend!=""})', 2)
            for _ in range(3):
                client.generate("Once upon a time " * 20, max_tokens=8, ignore_eos=True)
            found.wait_for("cell:pypto_serving_inter_token_seconds:p99 > 0 and cell:pypto_serving_prefix_hits:ratio_rate5m > 0", 1)
            yield found


def test_every_name_in_the_board_and_the_rules_is_exported(watched: Prometheus) -> None:
    asked_for = {name for expression in board_expressions() for name in names_in(expression)}
    asked_for |= {name for rule in rules() for name in names_in(rule["expr"])}
    asked_for |= {name for query in adapter_queries() for name in names_in(query)}
    assert len(asked_for) > 50
    assert not asked_for - watched.names()


@pytest.mark.parametrize("expression", board_expressions())
def test_every_panel_has_series(watched: Prometheus, expression: str) -> None:
    assert watched.query(expression) or expression.endswith(_SILENT)


def test_every_rule_records(watched: Prometheus) -> None:
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    assert len(recorded) > 10
    assert not [name for name in recorded if not watched.query(name)]


def test_series_of_both_planes_join_by_the_workers_name(watched: Prometheus) -> None:
    named = "pypto_serving_worker_kv_cache_bytes * on (instance) group_left (worker) pypto_serving_worker_info"
    found = {series["metric"]["worker"] for series in watched.query(named)}
    assert found == {series["metric"]["worker"] for series in watched.query("pypto_serving_link_in_session == 1")}
    assert len(found) == 2


def test_no_alert_fires_on_what_is_well(watched: Prometheus) -> None:
    assert watched.query('ALERTS{alertstate="firing"}') == []


def test_vllms_names_are_scraped(watched: Prometheus) -> None:
    ((running,), (first_tokens,)) = (
        watched.query("vllm:num_requests_running"),
        watched.query("vllm:time_to_first_token_seconds_count"),
    )
    assert (running["value"][1], first_tokens["value"][1]) == ("0", "3")
    assert running["metric"]["model_name"] == "llama"
