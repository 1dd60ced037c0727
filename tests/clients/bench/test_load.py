import asyncio

from clients.bench.load import Workload, arrivals, closed_loop, open_loop
from clients.bench.timeline import Timeline
from clients.request import Request
from clients.results import Model

MODEL = Model("m", "A", "f", vocab_size=1000, max_model_len=64, end_token_ids=(2, 3), has_chat_template=False)
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


def test_prompts_have_their_length_and_no_end_token():
    requests = Workload(prompt_tokens=500, max_tokens=4).requests(MODEL, "c", 4)
    assert all(len(request.token_ids) == 500 and not {2, 3} & set(request.token_ids) for request in requests)
    assert all(request.ignore_eos and request.max_tokens == 4 for request in requests)


def test_prompts_differ_within_and_between_levels():
    workload = Workload(prompt_tokens=16, max_tokens=4)
    prompts = [tuple(request.token_ids) for level in ("a", "b") for request in workload.requests(MODEL, level, 50)]
    assert len(set(prompts)) == 100


def test_same_seed_gives_the_same_prompts():
    first, same, other = (Workload(16, 4, seed=seed).requests(MODEL, "a", 3) for seed in (1, 1, 2))
    assert first == same != other


def test_shared_prefix_is_shared_by_all_levels():
    workload = Workload(prompt_tokens=32, max_tokens=4, shared_prefix_tokens=16)
    prompts = [request.token_ids for level in ("a", "b") for request in workload.requests(MODEL, level, 5)]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 1
    assert len({tuple(prompt[16:]) for prompt in prompts}) == 10
