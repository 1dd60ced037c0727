import asyncio
import time

from clients.bench.load import Load, Workload, closed_loop, open_loop, put
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
    assert len(await put(Sender(), Load(REQUESTS, 60.0, times=[0.0] * 6), time.perf_counter())) == 6


async def test_open_loop_starts_nothing_after_its_time():
    assert len(await put(Sender(), Load(REQUESTS, 0.0, times=[0.0] + [1000.0] * 5), time.perf_counter())) == 1


def test_parts_of_a_closed_loop_hold_every_request_once_and_the_streams_together():
    parts = Load(REQUESTS, 60.0, concurrency=5).split(2)
    assert [part.concurrency for part in parts] == [3, 2]
    assert [[request.token_ids[0] for request in part.requests] for part in parts] == [[0, 2, 4, 5], [1, 3]]
    assert [len(part.requests) for part in Load(REQUESTS, 60.0, concurrency=2).split(4)] == [3, 3]


def test_parts_of_an_open_loop_keep_their_times():
    parts = Load(REQUESTS, 60.0, times=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).split(4)
    assert [part.times for part in parts] == [[0.0, 4.0], [1.0, 5.0], [2.0], [3.0]]
    assert [request for part in parts for request in part.requests] == [REQUESTS[index] for index in (0, 4, 1, 5, 2, 3)]
    assert len(Load(REQUESTS[:2], 60.0, times=[0.0, 1.0]).split(4)) == 2


async def test_open_loop_measures_how_late_it_is():
    async def send(request):
        timeline = Timeline(time.perf_counter())
        time.sleep(0.02)  # holds the loop, so that the requests after this one are late
        return timeline

    now = time.perf_counter()
    lateness = [timeline.lateness_seconds for timeline in await open_loop(send, REQUESTS[:3], [now] * 3, now + 60)]
    assert 0.0 <= lateness[0] < lateness[1] - 0.015 < lateness[2] - 0.03


def test_prompts_have_their_length_and_no_end_token():
    requests = Workload(prompt_tokens=500, max_tokens=4).requests(MODEL, "c", 4)
    assert all(len(request.token_ids) == 500 and not {2, 3} & set(request.token_ids) for request in requests)
    assert all(request.ignore_eos and request.max_tokens == 4 for request in requests)


def test_prompts_differ_within_and_between_levels():
    workload = Workload(prompt_tokens=16, max_tokens=4)
    prompts = [tuple(request.token_ids) for level in ("a", "b") for request in workload.requests(MODEL, level, 50)]
    assert len(set(prompts)) == 100


def test_lengths_of_each_request_are_kept():
    requests = Workload(1, 1, shared_prefix_tokens=4).requests_of(MODEL, "a", [(9, 2), (2, 5)])
    assert [(len(request.token_ids), request.max_tokens) for request in requests] == [(9, 2), (2, 5)]
    assert requests[0].token_ids[:2] == requests[1].token_ids


def test_same_seed_gives_the_same_prompts():
    first, same, other = (Workload(16, 4, seed=seed).requests(MODEL, "a", 3) for seed in (1, 1, 2))
    assert first == same != other


def test_shared_prefix_is_shared_by_all_levels():
    workload = Workload(prompt_tokens=32, max_tokens=4, shared_prefix_tokens=16)
    prompts = [request.token_ids for level in ("a", "b") for request in workload.requests(MODEL, level, 5)]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 1
    assert len({tuple(prompt[16:]) for prompt in prompts}) == 10
