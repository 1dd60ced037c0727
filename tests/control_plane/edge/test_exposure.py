import pytest

from control_plane.edge.config import exposures, read_config

TLS = "--tls-cert c --tls-key k"
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
    told = exposures(read_config(["--model", "m", *flags.split()]))
    assert len(told) == len(found)
    assert all(part in sentence for part, sentence in zip(found, told, strict=True))
