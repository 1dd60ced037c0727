import pytest

from control_plane.edge.config import front_end_exposures, scheduler_exposures
from control_plane.edge.flags.programs import read_config, read_front_end_config, read_scheduler_config

TLS = "--tls-cert c --tls-key k"
LINK = "--link-tls-ca a --link-tls-cert c --link-tls-key k"
WORKERS = "--worker-tls-ca a --worker-tls-cert c --worker-tls-key k"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", []),
        ("--host ::1", []),
        ("--host localhost", []),
        ("--host 0.0.0.0", ["may use this server", "may announce a worker"]),
        (f"--host 0.0.0.0 {WORKERS}", ["may use this server"]),
        (f"--host 10.0.0.1 {TLS} {WORKERS}", ["may use this server"]),
        (f"--host :: --api-keys-file f {WORKERS}", ["plain text"]),
        (f"--host serving --api-keys-file f {TLS} {WORKERS}", []),
        (f"--host 0.0.0.0 {TLS} --tls-client-ca a {WORKERS}", []),
    ],
)
def test_what_other_machines_find_open_is_told(flags: str, found: list[str]) -> None:
    config = read_config(["--model", "m", *flags.split()])
    assert_told(front_end_exposures(config.front_end) + scheduler_exposures(config.scheduler), found)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--scheduler 127.0.0.1:1 --scheduler unix:/run/x", []),
        ("--scheduler localhost:1 --scheduler other:1", ["to the scheduler in plain text"]),
        (f"--scheduler other:1 {LINK}", []),
    ],
)
def test_a_front_end_tells_of_plain_text_to_another_machine(flags: str, found: list[str]) -> None:
    assert_told(front_end_exposures(read_front_end_config(["--model", "m", *flags.split()])[0]), found)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", []),
        (f"--host 0.0.0.0 {WORKERS}", ["may be a front end"]),
        (f"--host 0.0.0.0 {WORKERS} --frontend-host ::1", []),
        (f"--host 0.0.0.0 {WORKERS} --frontend-socket /run/x", []),
        (f"--host 0.0.0.0 {WORKERS} {LINK}", []),
        ("--frontend-host 0.0.0.0", ["may be a front end"]),
        (f"--host 0.0.0.0 {LINK}", ["may announce a worker"]),
    ],
)
def test_a_scheduler_tells_who_may_be_a_front_end(flags: str, found: list[str]) -> None:
    assert_told(scheduler_exposures(read_scheduler_config(["--model", "m", *flags.split()])[0]), found)


def assert_told(told: list[str], found: list[str]) -> None:
    assert len(told) == len(found)
    assert all(part in sentence for part, sentence in zip(found, told, strict=True))
