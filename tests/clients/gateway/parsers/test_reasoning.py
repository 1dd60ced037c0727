"""Thoughts are parted from answers."""

import pytest

from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.parsers.pieces import Content, Reasoning
from clients.gateway.parsers.reasoning import ReasoningParser


def parted(parts, is_open=False):
    """Thoughts and answer."""
    parser = AnswerParser(ReasoningParser(is_open), None)
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.end()
    return tuple("".join(piece.text for piece in pieces if isinstance(piece, kind)) for kind in (Reasoning, Content))


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("<think>\nhm\n</think>\n\nyes", "hm\n", "yes"),
        ("\n<think>hm</think>yes", "hm", "yes"),
        ("<think>never ends", "never ends", ""),
        ("<think></think>yes", "", "yes"),
        ("<thin", "", "<thin"),
        ("no <think>thoughts</think>", "", "no <think>thoughts</think>"),
        ("<think>a < b </thin</think>c </think>", "a < b </thin", "c </think>"),
    ],
)
def test_thoughts_are_parted_wherever_they_are_cut(text, thoughts, answer):
    assert parted([text]) == (thoughts, answer) == parted(text)
    for place in range(1, len(text)):
        assert parted([text[:place], text[place:]]) == (thoughts, answer)


@pytest.mark.parametrize(("text", "said"), [("hm</think>yes", ("hm", "yes")), ("hm", ("hm", ""))])
def test_the_prompt_may_have_begun_the_thoughts(text, said):
    assert parted([text], is_open=True) == said == parted(text, is_open=True)
