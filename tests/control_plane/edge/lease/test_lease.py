"""The lease of a process, on its thread."""

import asyncio
from pathlib import Path

import pytest
from fakes.control_plane.lease_store import MemoryLease, MemoryLeaseStore

from control_plane.edge.config import LeaseOptions
from control_plane.edge.lease.keeper import LeaseRecord
from control_plane.edge.lease.lease import Lease, open_store
from pypto_serving.process.start_up import StartUpError


async def test_a_second_one_waits_until_the_first_gives_it_back(tmp_path: Path) -> None:
    options = LeaseOptions(tmp_path / "lease", None, 60.0)
    first, second = (Lease(open_store(options, {}), 20.0) for _ in range(2))
    first.start()
    await first.wait_until_held()
    second.start()
    while not second.holder:
        await asyncio.sleep(0.01)
    assert second.holder == first.holder
    await first.release()
    await second.wait_until_held()
    await second.release()
    assert '"holder": ""' in (tmp_path / "lease").read_text()


async def test_somebody_else_who_writes_it_is_noticed() -> None:
    shared = MemoryLease()
    lease = Lease(MemoryLeaseStore(shared), 6.0)
    lease.start()
    await lease.wait_until_held()
    shared.record = LeaseRecord("other", 60.0, "other")
    await lease.wait_until_lost()
    assert lease.holder == "other"
    await lease.release()
    assert shared.record.holder == "other"


async def test_a_lease_that_could_not_be_renewed_in_time_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryLeaseStore(MemoryLease())
    lease = Lease(store, 0.3)
    lease.start()
    await lease.wait_until_held()
    store.is_reachable = False
    await lease.wait_until_lost()
    assert "the lease is lost" in caplog.text


def test_a_lease_that_can_never_be_had_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartUpError, match=r"nowhere is no directory"):
        open_store(LeaseOptions(tmp_path / "nowhere" / "lease", None, 5.0), {})
    with pytest.raises(StartUpError, match="needs a pod"):
        open_store(LeaseOptions(None, ("a", "b"), 5.0), {})
