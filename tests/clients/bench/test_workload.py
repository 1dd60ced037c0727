from clients.bench.workload import Workload
from clients.descriptions import Model

MODEL = Model("m", "A", "f", vocab_size=1000, max_model_len=64, end_token_ids=(2, 3), has_chat_template=False)


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
