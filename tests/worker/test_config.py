"""Flags of a worker."""

from pathlib import Path

import pytest

from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.start_up import StartUpError
from worker.config import WorkerConfig, read_config
from worker.step_time import StepTable


def config(tmp_path: Path, *arguments: str) -> WorkerConfig:
    return read_config(["--model", str(tmp_path), *arguments])


def test_defaults(tmp_path: Path) -> None:
    read = config(tmp_path)
    assert (read.model, read.host, read.port, read.metrics_port) == (tmp_path, "127.0.0.1", 50061, 9401)
    assert (read.dtype, read.max_lanes, read.max_step_tokens, read.max_steps_in_flight, read.page_tokens) == ("bfloat16", 256, 512, 2, None)
    assert (read.num_pages, read.max_model_len, read.drain_seconds) == (None, None, 30.0)


def test_environment_sets_a_flag_and_the_command_line_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYPTO_SERVING_WORKER_MAX_LANES", "8")
    monkeypatch.setenv("PYPTO_SERVING_WORKER_PORT", "1")
    read = config(tmp_path, "--port", "2")
    assert (read.max_lanes, read.port) == (8, 2)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_chk_08_page_sizes_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    with pytest.raises(SystemExit) as refusal:
        config(tmp_path, f"--page-tokens={value}")
    assert refusal.value.code == 2
    assert f"argument --page-tokens: {value} is not an integer from 1" in capsys.readouterr().err


def test_missing_model_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartUpError, match="no such directory") as refusal:
        config(tmp_path / "nothing")
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "argument --port: 65536 is not an integer from 0 to 65535"),
        (["--max-lanes", "0"], "argument --max-lanes: 0 is not an integer from 1"),
        (["--lease-seconds", "nan"], "argument --lease-seconds: nan is not a number of seconds"),
        (["--lease-seconds", "0.0001"], "argument --lease-seconds: 0.0001 is not a number of seconds of at least 0.1"),
        (["--max-lanes", "2147483647"], "argument --max-lanes: 2147483647 is not an integer from 1 to 65536"),
        (["--threads", "100000"], "argument --threads: 100000 is not an integer from 1 to 1024"),
        (["--announce", "here"], "argument --announce: here is not host:port"),
        (["--tls-cert", "c"], "--tls-cert needs --tls-key"),
        (["--tls-client-ca", "a"], "--tls-client-ca needs --tls-cert"),
        (["--step-ms", "5"], "--step-ms needs --device null"),
        (["--device", "cpu", "--token-us", "0"], "--token-us needs --device null"),
        (["--device", "null", "--step-ms", "-1"], "argument --step-ms: -1 is not a number from 0 to 10000"),
        (["--device", "null", "--token-us", "nan"], "argument --token-us: nan is not a number from 0 to 10000"),
        (["--step-table", "/dev/null"], "argument --step-table: /dev/null: line 1: must be batch_size,tokens,milliseconds"),
        (["--step-table", "/nowhere.csv"], "argument --step-table: /nowhere.csv: No such file or directory"),
        (["--dtype", "float16"], "argument --dtype: invalid choice"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as refusal:
        config(tmp_path, *arguments)
    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], "127.0.0.1:7"),
        (["--host", "::1"], "[::1]:7"),
        (["--advertise", "gpu-3"], "gpu-3:7"),
        (["--advertise", "gpu-3:99"], "gpu-3:99"),
        (["--advertise", "[fd00::1]"], "[fd00::1]:7"),
        (["--advertise", "[fd00::1]:99"], "[fd00::1]:99"),
        (["--advertise", "fd00::2"], "[fd00::2]:7"),
        (["--advertise", "::1"], "[::1]:7"),
    ],
)
def test_net_01_advertised_address(tmp_path: Path, arguments: list[str], address: str) -> None:
    assert config(tmp_path, *arguments).advertised_address(7) == address


def test_times_of_a_null_device(tmp_path: Path) -> None:
    timed, bare = config(tmp_path, "--device", "null", "--step-ms", "2.5", "--token-us", "20"), config(tmp_path, "--device", "null")
    assert (timed.step_ms, timed.token_us, bare.step_ms, bare.token_us) == (2.5, 20.0, 0.0, 0.0)


def test_table_of_a_null_device_is_read(tmp_path: Path) -> None:
    (table := tmp_path / "steps.csv").write_text("batch_size,tokens,milliseconds\n1,1,2.5\n")
    assert config(tmp_path, "--device", "null", "--step-table", str(table)).step_table == StepTable({1: ([0], [2.5])})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--device cpu", "--step-table needs --device null"),
        ("--device null --token-us 3", "--token-us and --step-table, which has all times, exclude each other"),
    ],
)
def test_table_where_it_says_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str) -> None:
    (table := tmp_path / "steps.csv").write_text("batch_size,tokens,milliseconds\n1,1,2.5\n")
    with pytest.raises(SystemExit, match="2"):
        config(tmp_path, "--step-table", str(table), *flags.split())
    assert message in capsys.readouterr().err


def test_announcing_a_wildcard_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartUpError, match=r"--advertise is needed with --announce: --host 0\.0\.0\.0"):
        config(tmp_path, "--host", "0.0.0.0", "--announce", "control:50052")


def test_certificates_and_metrics_host_are_read(tmp_path: Path) -> None:
    read = config(tmp_path, *["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a", "--metrics-host", "10.0.0.1"])
    assert (read.tls, read.metrics_host) == (TlsFiles(Path("c"), Path("k"), Path("a")), "10.0.0.1")
    assert (config(tmp_path).tls, config(tmp_path, "--host", "::1").metrics_host) == (None, "::1")


@pytest.mark.parametrize(
    ("flags", "is_exposed"),
    [
        ("", False),
        ("--host localhost", False),
        ("--host 0.0.0.0", True),
        ("--host 0.0.0.0 --tls-cert c --tls-key k", True),
        ("--host 0.0.0.0 --tls-cert c --tls-key k --tls-client-ca a", False),
    ],
)
def test_a_worker_that_anybody_may_use_knows_it(tmp_path: Path, flags: str, is_exposed: bool) -> None:
    assert config(tmp_path, *flags.split()).is_exposed is is_exposed
