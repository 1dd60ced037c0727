"""Real processes with certificates and keys on every port."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from fakes.network.certificates import CertificateDirectory
from harness.processes import ServingProcess, control_plane, worker

from clients import Client, Credentials, ServingError
from pypto_serving.process.credentials.files import TlsFiles


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateDirectory:
    return CertificateDirectory(tmp_path_factory.mktemp("certificates"))


def flags(prefix: str, files: TlsFiles, ca: str) -> list[str]:
    return [f"--{prefix}cert", str(files.cert), f"--{prefix}key", str(files.key), f"--{prefix}{ca}", str(files.ca)]


@pytest.fixture(scope="module")
def serving(
    tiny_checkpoint: Callable[..., Path], certificates: CertificateDirectory
) -> Iterator[tuple[ServingProcess, ServingProcess, Credentials]]:
    """A control plane, a worker that announced itself, and what a client shows; mutual TLS throughout."""
    model = tiny_checkpoint("llama")
    keys = certificates.directory / "keys"
    keys.write_text("sesame\n")
    ours = certificates.issue("client")
    shown = Credentials(tls_ca=ours.ca, tls_cert=ours.cert, tls_key=ours.key, api_key="sesame")
    control_flags = [
        *flags("tls-", certificates.issue("server"), "client-ca"),
        *flags("worker-tls-", certificates.issue("control"), "ca"),
        "--api-keys-file",
        str(keys),
    ]
    with control_plane(model, [], *control_flags) as control:
        announced_to = str(control.start_event["announce"])
        worker_flags = [*flags("tls-", certificates.issue("worker"), "client-ca"), "--announce", announced_to]
        with worker(model, *worker_flags) as working, Client(control.address, credentials=shown) as client:
            while not client.is_serving():
                time.sleep(0.05)
            yield control, working, shown


@pytest.mark.slow
def test_a_request_goes_through_every_locked_door(serving: tuple[ServingProcess, ServingProcess, Credentials]) -> None:
    control, _, shown = serving
    with Client(control.address, credentials=shown) as client:
        assert client.generate("Hello", max_tokens=5, ignore_eos=True).usage.completion_tokens == 5
    wrong = Credentials(tls_ca=shown.tls_ca, tls_cert=shown.tls_cert, tls_key=shown.tls_key, api_key="tahini")
    with Client(control.address, credentials=wrong) as client, pytest.raises(ServingError, match="UNAUTHENTICATED"):
        client.models()


@pytest.mark.slow
def test_strangers_at_a_locked_door_leave_nothing_but_our_own_lines(
    serving: tuple[ServingProcess, ServingProcess, Credentials],
) -> None:
    for process in serving[:2]:
        host, _, port = process.address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            stranger.recv(100)
        assert all("level" in event for event in process.events)


@pytest.mark.slow
def test_ops_04_a_stream_goes_on_while_every_certificate_is_renewed(
    serving: tuple[ServingProcess, ServingProcess, Credentials], certificates: CertificateDirectory
) -> None:
    control, working, shown = serving
    with Client(control.address, credentials=shown) as client:
        stream = client.stream("Hello", max_tokens=200, ignore_eos=True)
        next(stream)
        for name in ("server", "control", "worker", "client"):
            certificates.issue(name)
        with Client(control.address, credentials=shown) as later:
            assert later.generate("Hello", max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
        *_, finished = stream
    assert finished.usage.completion_tokens == 200
    for process in (control, working):
        with urlopen(process.metrics_url) as answer:
            assert 'credential_reloads_total{credentials="tls",outcome="ok"} 0.0' not in str(answer.read(), "utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["control_plane", "worker"])
def test_a_process_does_not_start_with_a_broken_pair(
    tiny_checkpoint: Callable[..., Path], certificates: CertificateDirectory, module: str
) -> None:
    broken = certificates.issue("broken")
    shutil.copy(certificates.issue("other").key, broken.key)
    arguments = ["--model", str(tiny_checkpoint("llama")), "--port", "0", "--metrics-port", "0"]
    arguments += ["--tls-cert", str(broken.cert), "--tls-key", str(broken.key)]
    ended = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "are no certificate and its unencrypted key: KEY_VALUES_MISMATCH" in ended.stderr
