"""Flags over environment over file over defaults."""

from pathlib import Path

import pytest

from control_plane.edge.config import read_config


def test_defaults_listen_on_this_machine_only() -> None:
    config = read_config(["--model", "m"])
    assert (config.host, config.port, config.announce_port, config.metrics_port, config.admin_port) == (
        "127.0.0.1",
        50051,
        50052,
        9400,
        None,
    )
    assert (config.workers, config.drain_seconds, config.scheduler.grace_seconds) == ((), 30.0, 30.0)
    assert config.scheduler.prefix_caching and not config.scheduler.continue_on_numerics_change


def test_flags_reach_their_options() -> None:
    flags = "--worker a:1 --worker b:2 --max-num-seqs 3 --no-prefix-cache --on-numerics-change continue --max-queued-requests 9"
    config = read_config(["--model", "m", *flags.split(), "--default-top-k", "5", "--max-model-len", "100"])
    assert (config.workers, config.scheduler.max_sequences, config.scheduler.max_model_len) == (("a:1", "b:2"), 3, 100)
    assert config.scheduler.continue_on_numerics_change and not config.scheduler.prefix_caching
    assert (config.engine.max_queued_requests, config.default_sampling) == (9, {"top_k": 5})


def test_flags_go_before_the_environment_and_that_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serving.toml"
    file.write_text('[control]\nport = 1\nmetrics-port = 2\nannounce-port = 3\nworker = ["a:1", "b:2"]\n')
    monkeypatch.setenv("PYPTO_SERVING_CONTROL_PORT", "10")
    monkeypatch.setenv("PYPTO_SERVING_CONTROL_METRICS_PORT", "20")
    config = read_config(["--model", "m", "--config", str(file), "--port", "100"])
    assert (config.port, config.metrics_port, config.announce_port, config.workers) == (100, 20, 3, ("a:1", "b:2"))


@pytest.mark.parametrize(
    "flags", ["--port 65536", "--max-num-seqs 0", "--drain-seconds nan", "--worker nowhere", "--on-numerics-change stop", "--unknown 1"]
)
def test_a_wrong_flag_ends_with_exit_code_2(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_config(["--model", "m", *flags.split()])
    assert caught.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err
