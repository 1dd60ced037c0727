"""Flags over environment over file over defaults, of three programs."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.edge.access.options import PeerTls
from control_plane.edge.config import Part, ServedAddress
from control_plane.edge.flags.programs import read_config, read_front_end_config, read_scheduler_config
from control_plane.edge.service.admission.parameters import SAMPLING_DEFAULTS
from pypto_serving.process.credentials.files import TlsFiles


def test_defaults_listen_on_this_machine_only() -> None:
    config = read_config(["--model", "m"])
    front_end, scheduler = config.front_end, config.scheduler
    assert (front_end.address, front_end.admin) == (ServedAddress("127.0.0.1", 50051), None)
    assert (scheduler.announce, scheduler.metrics) == (ServedAddress("127.0.0.1", 50052), ServedAddress("127.0.0.1", 9400))
    assert (scheduler.workers, front_end.drain_seconds, scheduler.scheduler.grace_seconds) == ((), 30.0, 30.0)
    assert scheduler.scheduler.prefix_caching and not scheduler.scheduler.continue_on_numerics_change
    access = front_end.access
    assert (access.tls, scheduler.worker_tls, access.api_keys_file, access.reflection) == (None, None, None, True)
    assert (front_end.link, scheduler.front_ends, scheduler.lease) == (None, None, None)


def test_flags_reach_their_options() -> None:
    flags = "--worker a:1 --worker b:2 --max-num-seqs 3 --no-prefix-cache --on-numerics-change continue --max-queued-requests 9"
    config = read_config(["--model", "m", *flags.split(), "--default-top-k", "5", "--max-model-len", "100"])
    scheduler = config.scheduler
    assert (scheduler.workers, scheduler.scheduler.max_sequences, scheduler.scheduler.max_model_len) == (("a:1", "b:2"), 3, 100)
    assert scheduler.scheduler.continue_on_numerics_change and not scheduler.scheduler.prefix_caching
    assert (scheduler.engine.max_queued_requests, config.front_end.model.default_sampling) == (9, {"top_k": 5})
    assert config.front_end.engine == scheduler.engine


@pytest.mark.parametrize(("flags", "seconds"), [("", 10.0), ("--priority-mode aged", 10.0), ("--priority-mode strict", math.inf)])
def test_the_mode_of_priorities_says_what_waiting_is_worth(flags: str, seconds: float) -> None:
    assert read_config(["--model", "m", *flags.split()]).scheduler.scheduler.ageing_seconds == seconds


def test_every_sampling_default_of_a_model_has_a_flag() -> None:
    flags = [word for field in SAMPLING_DEFAULTS for word in (f"--default-{field.replace('_', '-')}", "1")]
    config = read_config(["--model", "m", *flags])
    assert config.front_end.model.default_sampling == dict.fromkeys(SAMPLING_DEFAULTS, 1)


def test_flags_go_before_the_environment_and_that_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serving.toml"
    file.write_text('[control]\nport = 1\nmetrics-port = 2\nannounce-port = 3\nworker = ["a:1", "b:2"]\n')
    monkeypatch.setenv("PYPTO_SERVING_CONTROL_PORT", "10")
    monkeypatch.setenv("PYPTO_SERVING_CONTROL_METRICS_PORT", "20")
    config = read_config(["--model", "m", "--config", str(file), "--port", "100"])
    assert (config.front_end.address.port, config.scheduler.metrics.port, config.scheduler.announce.port) == (100, 20, 3)
    assert config.scheduler.workers == ("a:1", "b:2")


@pytest.mark.parametrize(("num_cores", "num_front_ends"), [(1, 0), (3, 0), (4, 2), (6, 3), (64, 4)])
def test_a_small_machine_has_one_process(num_cores: int, num_front_ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    assert read_config(["--model", "m"]).num_front_ends == num_front_ends
    assert read_config(["--model", "m", "--frontends", "1"]).num_front_ends == 1


def test_parts_of_a_control_plane_meet_at_a_socket() -> None:
    flags = "--frontends 2 --admin-port 7 --metrics-port 8 --scheduler-grace-seconds 9 --socket /run/s --part"
    scheduler, first, second = (read_config(["--model", "m", *flags.split(), part]) for part in ("scheduler", "0", "1"))
    assert (scheduler.part, first.part) == (Part.SCHEDULER, Part.FRONT_END)
    assert scheduler.scheduler.front_ends and scheduler.scheduler.front_ends.socket == Path("/run/s")
    assert first.front_end.link and (first.front_end.link.addresses, first.front_end.link.grace_seconds) == (("unix:/run/s",), 9.0)
    assert (first.front_end.admin, second.front_end.admin) == (ServedAddress("127.0.0.1", 7), None)
    assert (second.front_end.name, second.front_end.shares_port, second.front_end.metrics) == ("1", True, None)


def test_each_program_has_an_environment_and_a_table_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serving.toml"
    file.write_text('[control]\nport = 1\n[frontend]\nscheduler = ["a:1"]\n[scheduler]\nfrontend-port = 3\n')
    monkeypatch.setenv("PYPTO_SERVING_FRONTEND_PORT", "10")
    monkeypatch.setenv("PYPTO_SERVING_SCHEDULER_WORKER", "[b:2]")
    flags = ["--model", "m", "--config", str(file)]
    front_end, scheduler = read_front_end_config(flags)[0], read_scheduler_config(flags)[0]
    assert front_end.address.port == 10 and front_end.link and front_end.link.addresses == ("a:1",)
    assert scheduler.workers == ("b:2",) and scheduler.front_ends and scheduler.front_ends.address.port == 3


Program = Callable[[list[str]], object]


def assert_refused(program: Program, flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program(["--model", "m", *flags.split()])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "flags",
    [
        "--port 65536",
        "--max-num-seqs 0",
        "--drain-seconds nan",
        "--worker nowhere",
        "--on-numerics-change stop",
        "--priority-mode old",
        "--unknown 1",
    ],
)
def test_a_wrong_flag_ends_with_exit_code_2(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(read_config, flags, flags.split()[0], capsys)


def test_certificates_and_keys_reach_their_options() -> None:
    flags = "--tls-cert c --tls-key k --tls-client-ca a --worker-tls-ca wa --worker-tls-cert wc --worker-tls-key wk --worker-tls-name w"
    keys = "--api-keys-file f --admin-key-file g --admin-port 1 --admin-host 0.0.0.0 --no-reflection"
    config = read_config(["--model", "m", *flags.split(), *keys.split()])
    access = config.front_end.access
    assert access.tls == TlsFiles(Path("c"), Path("k"), Path("a"))
    assert config.scheduler.worker_tls == PeerTls(TlsFiles(Path("wc"), Path("wk"), Path("wa")), "w")
    assert (access.api_keys_file, access.admin_key_file) == (Path("f"), Path("g"))
    assert not access.reflection


@pytest.mark.parametrize("part", ["2", "-1", "front", "0 --frontends 0"])
def test_a_part_that_does_not_exist_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_config(["--model", "m", "--frontends", "2", "--socket", "/run/s", *f"--part={part}".split()])
    assert "is neither scheduler nor a number below --frontends" in capsys.readouterr().err


def test_a_part_needs_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_config(["--model", "m", "--frontends", "2", "--part", "0"])
    assert "--part needs --socket" in capsys.readouterr().err


def test_metrics_may_be_bound_apart() -> None:
    assert read_config(["--model", "m", "--host", "0.0.0.0"]).scheduler.metrics.host == "0.0.0.0"
    assert read_config(["--model", "m", "--host", "0.0.0.0", "--metrics-host", "::1"]).scheduler.metrics.host == "::1"


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
    assert_refused(read_config, flags, message, capsys)


def test_a_front_end_knows_its_schedulers() -> None:
    flags = "--scheduler a:1 --scheduler unix:/run/s --link-tls-ca a --link-tls-cert c --link-tls-key k --link-tls-name n"
    config, log = read_front_end_config(["--model", "m", *flags.split(), "--scheduler-grace-seconds", "7", "--log-level", "error"])
    assert config.link and (config.link.addresses, config.link.grace_seconds) == (("a:1", "unix:/run/s"), 7.0)
    assert config.link.tls == PeerTls(TlsFiles(Path("c"), Path("k"), Path("a")), "n")
    assert (config.metrics, log.level) == (None, "error")


def test_a_scheduler_listens_for_front_ends_and_may_need_a_lease() -> None:
    flags = "--frontend-host ::1 --frontend-port 7 --lease-kubernetes a/b"
    config, _ = read_scheduler_config(["--model", "m", *flags.split(), "--announce-port", "8"])
    assert config.front_ends and (config.front_ends.socket, config.front_ends.address) == (None, ServedAddress("::1", 7))
    assert config.lease and (config.lease.kubernetes, config.lease.seconds) == (("a", "b"), 5.0)
    assert config.announce == ServedAddress("127.0.0.1", 8)
    on_socket, _ = read_scheduler_config(["--model", "m", "--frontend-socket", "/run/s", "--lease-file", "l", "--lease-seconds", "2"])
    assert on_socket.front_ends and on_socket.front_ends.socket == Path("/run/s")
    assert on_socket.lease and (on_socket.lease.file, on_socket.lease.seconds) == (Path("l"), 2.0)


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        (read_front_end_config, "", "--scheduler"),
        (read_front_end_config, "--scheduler unix:here", "unix:here is not unix: and an absolute path"),
        (read_front_end_config, "--scheduler a:1 --worker b:1", "--worker"),
        (read_front_end_config, "--scheduler a:1 --link-tls-ca a", "--link-tls-ca needs --link-tls-cert and --link-tls-key"),
        (read_front_end_config, "--scheduler a:1 --link-tls-name n", "--link-tls-name needs --link-tls-ca"),
        (read_scheduler_config, "--port 1", "--port"),
        (read_scheduler_config, "--frontend-socket s --frontend-port 1", "--frontend-socket stands in place of"),
        (read_scheduler_config, "--link-tls-key k", "--link-tls-key needs --link-tls-ca and --link-tls-cert"),
        (read_scheduler_config, "--lease-file l --lease-kubernetes a/b", "give one of them"),
        (read_scheduler_config, "--lease-seconds 5", "--lease-seconds needs --lease-file or --lease-kubernetes"),
        (read_scheduler_config, "--lease-file l --lease-seconds 0.5", "at least 1"),
        (read_scheduler_config, "--lease-kubernetes a/b/c", "a/b/c is not NAMESPACE/NAME"),
    ],
)
def test_what_does_not_go_together_is_refused(program: Program, flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(program, flags, message, capsys)


@pytest.mark.parametrize("program", [read_config, read_front_end_config, read_scheduler_config])
def test_help_lists_flags_by_what_they_are_about(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("--model DIR", "--metrics-port PORT", "timeouts:", "log:"))
