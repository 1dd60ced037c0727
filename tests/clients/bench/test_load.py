import asyncio

from clients.bench.load import arrivals, closed_loop, open_loop
from clients.bench.timeline import Timeline
from clients.request import Request

REQUESTS = [Request(token_ids=[index]) for index in range(6)]


class Sender:
    def __init__(self):
        self.sent = []
        self.num_running = self.most_running = 0

    async def __call__(self, request):
        self.sent.append(request)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0)
        self.num_running -= 1
        return Timeline(0.0)


async def test_closed_loop_sends_every_request_once_and_keeps_the_concurrency():
    sender = Sender()
    timelines = await closed_loop(sender, REQUESTS, concurrency=2, max_seconds=60)
    assert (sender.sent, len(timelines), sender.most_running) == (REQUESTS, 6, 2)


async def test_closed_loop_starts_nothing_after_its_time():
    assert len(await closed_loop(Sender(), REQUESTS, concurrency=2, max_seconds=0)) == 2


async def test_open_loop_sends_every_request():
    assert len(await open_loop(Sender(), REQUESTS, rate=1e6, max_seconds=60, seed=1)) == 6


async def test_open_loop_starts_nothing_after_its_time():
    assert len(await open_loop(Sender(), REQUESTS, rate=0.001, max_seconds=0, seed=1)) == 1


def test_arrivals_have_the_rate_and_depend_on_the_seed_only():
    times = arrivals(10.0, 5001, seed=1)
    assert times == arrivals(10.0, 5001, seed=1) != arrivals(10.0, 5001, seed=2)
    assert 9.5 < 5000 / times[-1] < 10.5
