"""Chat templates render as transformers renders them."""

import pytest

from control_plane.edge.text.chat_template import ChatTemplate, Conversation, TemplateBroken, TemplateRefused

MESSAGES = [{"role": "user", "content": "<é & 'x'>"}, {"role": "assistant", "content": "b"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, add_generation_prompt: bool = True) -> str:
    return ChatTemplate(source, SPECIAL).render(Conversation(MESSAGES, add_generation_prompt=add_generation_prompt))


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}\n{{ m['content'] }}{{ eos_token }}\n  {% endif %}\n{% endfor %}",
        "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ tools is none }}",
        "{{ messages | tojson(indent=2) }}{% if add_generation_prompt %}<|a|>{% endif %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ strftime_now('') }}",
    ],
)
def test_text_equals_transformers(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    oracle, _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, **SPECIAL)
    assert [render(source)] == list(oracle)


def test_the_assistant_turn_is_opened_on_request() -> None:
    source = "{% if add_generation_prompt %}open{% endif %}"
    assert (render(source, True), render(source, False)) == ("open", "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ 1 + messages[0].content }}", "unsupported operand"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_says_why(source: str, message: str) -> None:
    with pytest.raises(TemplateRefused, match=message):
        render(source)


def test_a_broken_template_is_named_with_its_line() -> None:
    with pytest.raises(TemplateBroken, match="line 1: "):
        ChatTemplate("{% for %}", SPECIAL)
