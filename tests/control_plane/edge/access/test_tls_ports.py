"""TLS on the ports of an assembled control plane, and on its links to workers."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes.network.certificates import CertificateDirectory
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2
from harness.running_control_plane import RunningControlPlane, running

from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.process.credentials.tls import TlsContents, channel_credentials, server_credentials, watch_tls
from pypto_serving.process.start_up import StartUpError
from worker.service.announce import Announcer

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def certificates(tmp_path: Path) -> CertificateDirectory:
    return CertificateDirectory(tmp_path / "certificates")


def serving_flags(files: TlsFiles) -> list[str]:
    return ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]


def worker_flags(files: TlsFiles) -> list[str]:
    return ["--worker-tls-ca", str(files.ca), "--worker-tls-cert", str(files.cert), "--worker-tls-key", str(files.key)]


async def secure(worker: FakeWorker, files: TlsFiles) -> None:
    """Start the worker anew, with TLS."""
    await worker.kill()
    worker.credentials = server_credentials(watch_tls("worker", files))
    await worker.start()


async def generate(server: RunningControlPlane, credentials: grpc.ChannelCredentials | None = None) -> int:
    spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=3))
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel(credentials=credentials))
    return (await stub.Generate(pb.GenerateRequest(spec=spec))).choices[0].finished.usage.completion_tokens


async def test_clients_and_operators_are_served_over_tls(model: Path, certificates: CertificateDirectory) -> None:
    trust = channel_credentials(TlsContents(ca=certificates.ca.read_bytes()))
    async with running(model, *serving_flags(certificates.issue("server"))) as server:
        stub = inference_pb2_grpc.InferenceServiceStub(server.channel(credentials=trust))
        assert len((await stub.ListModels(pb.ListModelsRequest())).models) == 1
        await admin_pb2_grpc.AdminServiceStub(server.channel("admin", trust)).GetState(admin_pb2.GetStateRequest())
        for port in ("address", "admin"):
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await server.channel(port).unary_unary("/x")(b"", timeout=20)


async def test_a_worker_is_reached_over_mutual_tls(model: Path, worker: FakeWorker, certificates: CertificateDirectory) -> None:
    await secure(worker, certificates.issue("worker"))
    async with running(model, "--worker", worker.address, *worker_flags(certificates.issue("control"))) as server:
        await server.health_becomes(SERVING)
        assert await generate(server) == 3


async def test_ops_04_a_link_goes_on_and_the_next_dial_shows_the_new_certificate(
    model: Path, worker: FakeWorker, certificates: CertificateDirectory, tmp_path: Path
) -> None:
    await secure(worker, certificates.issue("worker"))
    async with running(model, "--worker", worker.address, *worker_flags(certificates.issue("control"))) as server:
        await server.health_becomes(SERVING)
        renewed = CertificateDirectory(tmp_path / "certificates")  # of another authority, in the same files
        trusted = renewed.issue("worker")
        renewed.issue("control")
        assert await generate(server) == 3
        await secure(worker, trusted)
        assert await generate(server) == 3


async def test_a_worker_certificate_may_carry_a_name_of_its_own(
    model: Path, worker: FakeWorker, certificates: CertificateDirectory
) -> None:
    await secure(worker, certificates.issue("worker", host="gpu-worker.internal"))
    control = certificates.issue("control")
    async with running(model, "--worker", worker.address, *worker_flags(control), "--worker-tls-name", "gpu-worker.internal") as server:
        await server.health_becomes(SERVING)


@pytest.mark.parametrize("fault", ["foreign worker", "plain worker", "plain control plane"])
async def test_a_worker_that_cannot_be_trusted_gets_no_work(
    model: Path, worker: FakeWorker, certificates: CertificateDirectory, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    flags = worker_flags(certificates.issue("control"))
    if fault == "foreign worker":
        await secure(worker, CertificateDirectory(tmp_path / "foreign").issue("worker"))
    elif fault == "plain control plane":
        await secure(worker, certificates.issue("worker"))
        flags = []
    async with running(model, "--worker", worker.address, *flags):
        while not any("UNAVAILABLE" in record.message for record in caplog.records):
            await asyncio.sleep(0.01)
        assert worker.num_streams == 0 and worker.hellos == []


async def test_workers_announce_themselves_over_mutual_tls(model: Path, worker: FakeWorker, certificates: CertificateDirectory) -> None:
    theirs = certificates.issue("worker")
    await secure(worker, theirs)
    async with running(model, *worker_flags(certificates.issue("control"))) as server:
        address = f"127.0.0.1:{server.plane.ports['announce']}"
        stranger = asyncio.create_task(Announcer(address, "127.0.0.1:1", "stranger").run())
        known = asyncio.create_task(Announcer(address, worker.address, worker.incarnation, watch_tls("worker", theirs)).run())
        await server.health_becomes(SERVING)
        state = await admin_pb2_grpc.AdminServiceStub(server.channel("admin")).GetState(admin_pb2.GetStateRequest())
        assert [each.address for each in state.workers] == [worker.address]
        for task in (stranger, known):
            task.cancel()


@pytest.mark.parametrize("flag", ["--tls-cert", "--worker-tls-ca", "--api-keys-file", "--admin-key-file"])
async def test_a_missing_file_ends_the_start_with_one_line(model: Path, certificates: CertificateDirectory, flag: str) -> None:
    files = certificates.issue("server")
    (certificates.directory / "keys").write_text("key\n")
    good = {"--tls-cert": str(files.cert), "--tls-key": str(files.key), "--admin-key-file": str(certificates.directory / "keys")}
    flags = {**good, flag: "/nowhere/file"}
    with pytest.raises(StartUpError, match=rf"^{flag}(, --[a-z-]+)*: /nowhere/file: no such file$") as refused:
        async with running(model, *(part for pair in flags.items() for part in pair)):
            pass
    assert refused.value.exit_code == 2
