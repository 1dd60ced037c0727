"""Two schedulers, one of which stands by, and front ends apart from them."""

import contextlib
import signal
import time
from pathlib import Path

import grpc
import pytest
from fakes.network.certificates import CertificateDirectory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.processes import ServingProcess, fixed_ports, front_end, scheduler
from harness.raw_streams import RawStreams
from harness.waiting import until

from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2, inference_pb2_grpc
from pypto_serving.process.credentials.files import TlsFiles
from pypto_serving.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from pypto_serving.wire.fingerprint import fingerprint_model

pytestmark = pytest.mark.slow

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def says(process: ServingProcess, message: str) -> bool:
    return any(event["message"] == message for event in process.events)


def health(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service)).status


class Pair:
    """Two schedulers with one lease; the second one stands by. The flags of each start it again."""

    def __init__(self, model: Path, device: ServingProcess, lease: Path) -> None:
        self.model, self.device, self.lease = model, device, lease
        self.addresses = [f"127.0.0.1:{port}" for port in fixed_ports(2)]

    def start(self, number: int) -> ServingProcess:
        port = self.addresses[number].rpartition(":")[2]
        flags = ("--frontend-port", port, "--lease-file", str(self.lease), "--lease-seconds", "2")
        return scheduler(self.model, [self.device], *flags)


@pytest.fixture
def pair(model: Path, device: ServingProcess, tmp_path: Path) -> Pair:
    return Pair(model, device, tmp_path / "lease")


def refusal(address: str, model: Path) -> str:
    """How a scheduler answers a front end."""
    hello = scheduler_pb2.Hello(protocol_version=1, front_end_id="f", model_fingerprint=fingerprint_model(model))
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        next(scheduler_pb2_grpc.SchedulerServiceStub(channel).Connect(iter([scheduler_pb2.ConnectRequest(hello=hello)])))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details()


async def test_another_scheduler_takes_over_whatever_becomes_of_the_first(pair: Pair) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(pair.start(0))
        assert first.start_event["frontend"] == pair.addresses[0]
        second = stack.enter_context(pair.start(1))
        await until(lambda: says(second, "standing by"))
        assert health(pair.addresses[1]) == NOT_SERVING and health(pair.addresses[1], "liveness") == SERVING
        assert f"-{first.pid}-" in refusal(pair.addresses[1], pair.model)
        clients = stack.enter_context(front_end(pair.model, pair.addresses)).wait_until_ready()
        streams = RawStreams(clients.address, 8, max_tokens=400)
        undisturbed = await streams.run()

        assert await streams.disturbed(lambda: first.send_signal(signal.SIGSTOP)) == undisturbed
        assert says(second, "serving")
        first.send_signal(signal.SIGCONT)
        assert first.wait() == 1

        third = stack.enter_context(pair.start(0))
        await until(lambda: says(third, "standing by"))
        assert await streams.disturbed(lambda: second.send_signal(signal.SIGTERM)) == undisturbed
        assert second.wait() == 0 and says(third, "serving")


def test_a_scheduler_that_stands_by_ends_at_a_signal(pair: Pair) -> None:
    with pair.start(0) as first:
        assert first.start_event
        with pair.start(1) as second:
            while not says(second, "standing by"):
                time.sleep(0.02)
            second.send_signal(signal.SIGTERM)
            assert second.wait() == 0 and not says(second, "serving")


async def test_a_front_end_is_no_place_for_traffic_without_a_scheduler(model: Path, device: ServingProcess) -> None:
    (port,) = fixed_ports(1)
    with front_end(model, [f"127.0.0.1:{port}"]) as clients:
        assert health(clients.address) == NOT_SERVING and health(clients.address, "liveness") == SERVING
        with scheduler(model, [device], "--frontend-port", str(port), "--takeover"):
            clients.wait_until_ready()
        while health(clients.address) != NOT_SERVING:
            time.sleep(0.02)


async def test_an_operator_drains_all_front_ends_and_their_scheduler(model: Path, device: ServingProcess) -> None:
    with scheduler(model, [device], "--takeover") as serving:
        address = serving.start_event["frontend"]
        with front_end(model, [address], "--admin-port", "0") as first, front_end(model, [address]) as second:
            streams = RawStreams(second.wait_until_ready().address, 4)
            undisturbed = await streams.run()

            def drain() -> None:
                with grpc.insecure_channel(first.start_event["admin"]) as channel:
                    admin_pb2_grpc.AdminServiceStub(channel).Drain(admin_pb2.DrainRequest())

            assert await streams.disturbed(drain) == undisturbed
            assert (first.wait(), second.wait(), serving.wait()) == (0, 0, 0)


async def test_the_link_speaks_mutual_tls(model: Path, device: ServingProcess, tmp_path: Path) -> None:
    certificates, strangers = CertificateDirectory(tmp_path / "ours"), CertificateDirectory(tmp_path / "theirs")
    ours, theirs = certificates.issue("peer"), strangers.issue("peer")

    def flags(files: TlsFiles) -> tuple[str, ...]:
        return "--link-tls-ca", str(certificates.ca), "--link-tls-cert", str(files.cert), "--link-tls-key", str(files.key)

    with scheduler(model, [device], "--takeover", *flags(ours)) as serving:
        address = serving.start_event["frontend"]
        with front_end(model, [address], *flags(ours)) as clients, front_end(model, [address], *flags(theirs)) as refused:
            clients.wait_until_ready()
            assert await RawStreams(clients.address, 1, max_tokens=5).run()
            assert health(refused.address) == NOT_SERVING


def test_a_front_end_that_never_had_a_scheduler_says_so(model: Path) -> None:
    (port,) = fixed_ports(1)
    flags = ("--scheduler-grace-seconds", "0.5", "--worker-grace-seconds", "60")
    with front_end(model, [f"127.0.0.1:{port}"], *flags) as alone, grpc.insecure_channel(alone.address) as channel:
        spec = inference_pb2.GenerationSpec(text="Once")
        with pytest.raises(grpc.RpcError) as caught:
            inference_pb2_grpc.InferenceServiceStub(channel).Generate(inference_pb2.GenerateRequest(spec=spec))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details().startswith(f"no scheduler within 0.5 s: 127.0.0.1:{port}: ")
