import asyncio

from clients.serve.plan import Plan
from clients.serve.service import Service

_NEVER = ("serving", ("nobody",))


async def test_a_process_that_cannot_be_spawned_ends_all_others(caplog):
    too_long = ("control", "timeit", ["x" * (1 << 20)], _NEVER)
    other = ("worker-0", "timeit", ["-n", "1", "-r", "1", "-s", "import time", "time.sleep(60)"], _NEVER)
    assert await asyncio.wait_for(Service(Plan((too_long,), (other,), "")).run(), 20) == 1
    [failure] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert failure.getMessage().startswith("control cannot go on: [Errno 7] Argument list too long")
