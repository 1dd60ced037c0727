from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.network.kubernetes_api import KubernetesLeases

from control_plane.edge.lease.keeper import LeaseUnreachable
from control_plane.edge.lease.kubernetes_store import KubernetesLeaseStore, api_of_pod
from pypto_serving.process.start_up import StartUpError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubernetesLeases]:
    server = KubernetesLeases(tmp_path)
    yield server
    server.close()


def store(server: KubernetesLeases) -> KubernetesLeaseStore:
    return KubernetesLeaseStore(server.api, "serving", "scheduler", timeout_seconds=10.0)


def test_a_lease_is_made_renewed_and_handed_over(server: KubernetesLeases) -> None:
    ours = store(server)
    assert ours.read() is None
    first = ours.write("we", 4.5, None)
    assert first and (first.holder, first.seconds) == ("we", 5.0) and ours.read() == first
    renewed = ours.write("we", 4.5, first)
    assert renewed and renewed.version != first.version
    theirs = store(server)
    assert theirs.write("they", 4.5, theirs.read())
    spec = server.leases["scheduler"]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["renewTime"]) == ("they", 1, spec["acquireTime"])
    assert server.leases["scheduler"]["metadata"]["uid"] == "1-2-3"


def test_what_somebody_else_has_written_meanwhile_is_not_replaced(server: KubernetesLeases) -> None:
    ours, theirs = store(server), store(server)
    seen = ours.read()
    first = theirs.write("they", 5.0, None)
    assert ours.write("we", 5.0, seen) is None
    assert ours.read() == first and theirs.write("they", 5.0, first)
    assert ours.write("we", 5.0, first) is None
    assert server.leases["scheduler"]["spec"]["holderIdentity"] == "they"


def test_a_lease_that_was_given_back_is_nobodys(server: KubernetesLeases) -> None:
    ours = store(server)
    assert ours.write("", 5.0, ours.write("we", 5.0, None))
    record = store(server).read()
    assert record and record.holder == ""


def test_the_token_is_read_at_every_call(server: KubernetesLeases) -> None:
    ours = store(server)
    assert ours.write("we", 5.0, None)
    server.token.write_text("another")
    assert ours.read()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_is_told_with_its_reason(server: KubernetesLeases, status: int) -> None:
    ours = store(server)
    server.refusal = status
    for attempt in (ours.read, lambda: ours.write("we", 5.0, None)):
        with pytest.raises(LeaseUnreachable, match=f"the API server says {status}: not today"):
            attempt()


def test_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    server = KubernetesLeases(tmp_path)
    server.close()
    with pytest.raises(LeaseUnreachable, match="refused"):
        store(server).read()


def test_a_server_of_another_authority_is_not_believed(server: KubernetesLeases, tmp_path: Path) -> None:
    other = KubernetesLeases(tmp_path / "other")
    assert server.files.ca and other.files.ca
    server.files.ca.write_bytes(other.files.ca.read_bytes())
    other.close()
    with pytest.raises(LeaseUnreachable, match="certificate verify failed"):
        store(server).read()


def test_what_a_pod_has_is_found(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(StartUpError, match="needs a pod with a service account"):
        api_of_pod(environment, tmp_path)
    for name in ("token", "ca.crt"):
        (tmp_path / name).touch()
    api = api_of_pod(environment, tmp_path)
    assert (api.host, api.port, api.ca) == ("10.0.0.1", 6443, tmp_path / "ca.crt")
    with pytest.raises(StartUpError, match="needs a pod"):
        api_of_pod({}, tmp_path)
