"""Flags over environment over file over defaults."""

from pathlib import Path

import pytest

from control_plane.edge.config import read_config
from control_plane.edge.service.admission.parameters import SAMPLING_DEFAULTS
from pypto_serving.process.credentials.files import TlsFiles


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
    assert (config.metrics_host, config.admin_host, config.access.reflection) == ("127.0.0.1", "127.0.0.1", True)
    assert (config.access.tls, config.access.worker_tls, config.access.api_keys_file) == (None, None, None)


def test_flags_reach_their_options() -> None:
    flags = "--worker a:1 --worker b:2 --max-num-seqs 3 --no-prefix-cache --on-numerics-change continue --max-queued-requests 9"
    config = read_config(["--model", "m", *flags.split(), "--default-top-k", "5", "--max-model-len", "100"])
    assert (config.workers, config.scheduler.max_sequences, config.scheduler.max_model_len) == (("a:1", "b:2"), 3, 100)
    assert config.scheduler.continue_on_numerics_change and not config.scheduler.prefix_caching
    assert (config.engine.max_queued_requests, config.default_sampling) == (9, {"top_k": 5})


def test_every_sampling_default_of_a_model_has_a_flag() -> None:
    flags = [word for field in SAMPLING_DEFAULTS for word in (f"--default-{field.replace('_', '-')}", "1")]
    assert read_config(["--model", "m", *flags]).default_sampling == dict.fromkeys(SAMPLING_DEFAULTS, 1)


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


def test_certificates_and_keys_reach_their_options() -> None:
    flags = "--tls-cert c --tls-key k --tls-client-ca a --worker-tls-ca wa --worker-tls-cert wc --worker-tls-key wk --worker-tls-name w"
    keys = "--api-keys-file f --admin-key-file g --admin-port 1 --admin-host 0.0.0.0 --no-reflection"
    access = read_config(["--model", "m", *flags.split(), *keys.split()]).access
    assert (access.tls, access.worker_tls) == (TlsFiles(Path("c"), Path("k"), Path("a")), TlsFiles(Path("wc"), Path("wk"), Path("wa")))
    assert (access.worker_tls_name, access.api_keys_file, access.admin_key_file) == ("w", Path("f"), Path("g"))
    assert not access.reflection


def test_metrics_may_be_bound_apart() -> None:
    assert read_config(["--model", "m", "--host", "0.0.0.0"]).metrics_host == "0.0.0.0"
    assert read_config(["--model", "m", "--host", "0.0.0.0", "--metrics-host", "::1"]).metrics_host == "::1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--tls-cert c", "--tls-cert needs --tls-key"),
        ("--tls-key k", "--tls-key needs --tls-cert"),
        ("--tls-client-ca a", "--tls-client-ca needs --tls-cert"),
        ("--worker-tls-cert c", "--worker-tls-cert needs --worker-tls-ca and --worker-tls-key"),
        ("--worker-tls-ca a --worker-tls-key k", "--worker-tls-key needs --worker-tls-cert"),
        ("--worker-tls-name n", "--worker-tls-name needs --worker-tls-ca"),
        ("--admin-key-file f", "--admin-key-file needs --admin-port"),
        ("--admin-port 1 --api-keys-file f", "--admin-port beside --api-keys-file needs --admin-key-file"),
        ("--admin-port 1 --admin-host 0.0.0.0", "--admin-host 0.0.0.0 needs --admin-key-file and --tls-cert"),
        ("--admin-port 1 --admin-host ::1 --admin-key-file f --admin-host 10.0.0.1", "--admin-host 10.0.0.1 needs"),
    ],
)
def test_half_a_protection_is_refused(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_config(["--model", "m", *flags.split()])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
