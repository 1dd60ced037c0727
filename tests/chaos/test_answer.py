import pytest
from chaos.answer import Answer

from clients.results import Delta, PromptLogprobs, TokenLogprob


def delta(first_index, *token_ids, text="", choice=0):
    return Delta(choice, text, token_ids, first_index, ())


def answer(*events):
    taken = Answer()
    for event in events:
        taken.take(event)
    return taken


def test_equal_answers_have_no_differences_however_they_were_cut():
    assert not answer(delta(0, 1, 2, text="ab")).differences(answer(delta(0, 1, text="a"), delta(1, 2, text="b")))


def test_every_difference_is_told_to_its_end():
    told = answer(delta(0, *range(500), text="x")).differences(answer(delta(0, 0, 1, text="y"), delta(0, 7, text="z", choice=1)))
    assert [line.partition(" differ")[0] for line in told] == [f"choice {i}: {what}" for what in ("token_ids", "text") for i in (0, 1)]
    assert "from 2 on, length 500, undisturbed 2" in told[0] and "498, 499" in told[0]


@pytest.mark.parametrize("event", [delta(1, 5), delta(3, 5)])
def test_a_token_twice_or_left_out_breaks_a_rule(event):
    broken = answer(delta(0, 1, 2), event)
    assert "where 2 is due" in broken.differences(broken)[0]


def test_prompt_logprobs_are_compared():
    logprobs = PromptLogprobs((TokenLogprob(1, -0.5, b"a", ()),))
    assert "prompt_logprobs" in answer(logprobs).differences(answer())[0]
