"""The chat, in a browser, in front of a control plane that follows a script."""

import json

import pytest
from fakes.control_plane.inference_service import StreamFault
from grpc import StatusCode
from harness.browser import TELEPHONE
from harness.running_control_plane import running
from harness.service import real_service, scripted_service
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.slow

WHOLE = "100 101 102 103 104"
ANSWER = ".turn.assistant .text"
HOSTILE = b'<img src=x onerror="window.hit=1"><script>window.hit=1</script>\n\n```\n<b onclick=window.hit=1>\n```\n**<i>x</i>** `<u>`'


def messages(spec):
    return [(message.role, message.content) for message in spec.chat.messages]


async def test_text_appears_piece_by_piece(browser, fake_front):
    fake = fake_front.fake
    fake.free_tokens = 2
    fake.gate.clear()
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    assert await browser.until(ANSWER, lambda text: text) in ("100", "100 101")
    await browser.until(ANSWER, lambda text: text == "100 101")
    assert await browser.texts("#stop") == ["Stop"] and not await browser.texts("#send")
    fake.gate.set()
    assert await browser.until(ANSWER, lambda text: text.endswith("104")) == WHOLE
    assert "5 tokens after 3" in await browser.until(".foot", lambda text: "tokens" in text)


@pytest.mark.parametrize("way", ["escape", "button", "new chat"])
async def test_stopping_cancels_the_request(browser, fake_front, way):
    fake_front.fake.free_tokens = 2
    fake_front.fake.gate.clear()
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    await browser.until(ANSWER, lambda text: text == "100 101")
    await (browser.press(Keys.ESCAPE) if way == "escape" else browser.click({"button": "#stop", "new chat": "#clear"}[way]))
    await fake_front.fake.cancelled.wait()
    await browser.until("#send", lambda text: text == "Send")
    assert await browser.text(ANSWER) == ("" if way == "new chat" else "100 101")
    assert ("stopped" in await browser.text(".foot")) is (way != "new chat")


async def test_an_answer_can_be_asked_for_again(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    await browser.until(".again", lambda text: text == "Regenerate")
    await browser.click(".again")
    while len(fake_front.fake.seen) < 2:
        await browser.text(ANSWER)
    await browser.until(".again", lambda text: text == "Regenerate")
    assert await browser.texts(ANSWER) == [WHOLE]
    assert messages(fake_front.fake.seen[1]) == messages(fake_front.fake.seen[0]) == [("user", "hello")]


async def test_a_conversation_goes_on_and_outlives_a_reload(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    for said in ("one", "two"):
        await browser.say(said)
        await browser.until(".again", lambda text: text)
    await browser.run("location.reload()")
    await browser.until(".turn", lambda text: text.count(WHOLE) == 2)
    await browser.say("three")
    await browser.until(ANSWER, lambda text: text.count(WHOLE) == 3)
    told = messages(fake_front.fake.seen[-1])
    assert [role for role, _ in told] == ["user", "assistant"] * 2 + ["user"] and told[1][1].strip() == WHOLE
    await browser.click("#clear")
    assert not await browser.texts(".turn") and "turns" not in await browser.run("return localStorage['pypto-serving.turns']")


async def test_parameters_reach_the_request(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    for name, value in {"temperature": "0.25", "top_p": "0.5", "max_tokens": "2", "seed": "7", "system": "Be brief."}.items():
        await browser.fill(f"[name={name}]", value)
    await browser.say("hello")
    await browser.until(".again", lambda text: text)
    spec = fake_front.fake.seen[0]
    assert (spec.sampling.temperature, spec.sampling.top_p, spec.sampling.seed, spec.stopping.max_tokens) == (0.25, 0.5, 7, 2)
    assert messages(spec) == [("system", "Be brief."), ("user", "hello")]
    assert "cut off by the limit" in await browser.text(".foot")


async def test_empty_fields_leave_the_choice_to_the_model(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    await browser.until(".again", lambda text: text)
    sampling = fake_front.fake.seen[0].sampling
    assert not any(sampling.HasField(name) for name in ("temperature", "top_p")) and not sampling.HasField("seed")


async def test_tools_are_offered_and_what_is_no_json_is_told(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    await browser.fill("[name=tools]", "[{")
    await browser.say("hello")
    assert "are no JSON" in await browser.until(".error", lambda text: text)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    await browser.run("document.querySelector('[name=tools]').value = arguments[0]", json.dumps([tool]))
    await browser.click(".again")
    await browser.until(ANSWER, lambda text: text == WHOLE)
    assert [named.name for named in fake_front.fake.seen[0].chat.tools] == ["look"]


async def test_a_refusal_says_when_to_come_back(browser, fake_front):
    fake_front.fake.faults.append(StreamFault(StatusCode.RESOURCE_EXHAUSTED, None, "the queue is full", 3000))
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    told = await browser.until(".error", lambda text: text)
    assert "too much to do" in told and "the queue is full" in told and "Try again in 3 s." in told
    await browser.click(".again")
    assert await browser.until(ANSWER, lambda text: text) and await browser.until(".again", lambda text: text == "Regenerate")
    assert messages(fake_front.fake.seen[-1]) == [("user", "hello")]


async def test_what_fails_later_stays_beside_what_has_come(browser, fake_front):
    fake_front.fake.faults.append(StreamFault(StatusCode.INTERNAL, 3, "the worker is on fire"))
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    assert "on fire" in await browser.until(".error", lambda text: text)
    assert await browser.text(ANSWER) == "100 101 102" and await browser.text(".again") == "Try again"


async def test_it_is_used_by_keyboard_alone(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    assert await browser.run("return document.activeElement.id") == "message"
    await browser.fill("#message", f"first{Keys.SHIFT}{Keys.ENTER}{Keys.NULL}second{Keys.ENTER}")
    await browser.until(".again", lambda text: text == "Regenerate")
    assert messages(fake_front.fake.seen[0]) == [("user", "first\nsecond")]
    seen = set()
    for _ in range(20):
        await browser.press(Keys.TAB)
        shown = "const e = document.activeElement; return [e.id || e.name || e.className, getComputedStyle(e).outlineStyle]"
        name, outline = await browser.run(shown)
        assert outline != "none" or name == "", name
        seen.add(name)
    assert {"message", "send", "model", "clear", "show-settings", "temperature", "key", "to-service", "quiet again"} <= seen


async def test_every_control_has_a_name_and_answers_are_announced_once(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    await browser.until(".again", lambda text: text)
    nameless = "return [...document.querySelectorAll('input, textarea, select')].filter(e => !e.labels.length).map(e => e.name)"
    assert await browser.run(nameless) == []
    announcer = "const e = document.getElementById('announcer'); return [e.getAttribute('role'), e.textContent.trim()]"
    assert (await browser.run(announcer))[0] == "status" and WHOLE in (await browser.run(announcer))[1]
    assert not await browser.run("return document.getElementById('turns').closest('[aria-live]')")


@pytest.mark.parametrize("view", ["chat", "service"])
async def test_a_narrow_window_has_no_horizontal_scroll(browser, fake_front, view):
    await browser.open(f"{fake_front.gateway.url}/#{view}", TELEPHONE)
    if view == "chat":
        await browser.say("a" * 300)
        await browser.until(".again", lambda text: text)
        await browser.click("#show-settings")
    assert await browser.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
async def test_colours_follow_the_scheme(browser, fake_front, scheme, is_dark):
    await browser.open(fake_front.gateway.url, scheme=scheme)
    red = "return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert (await browser.run(red) < 64) is is_dark


async def test_what_a_model_writes_stays_text_and_reasoning_is_folded(browser, scripted_model, watched):
    async with scripted_service(scripted_model, max_model_len=1024, num_pages=2048) as service, watched(service.server) as gateway:
        name = service.plan([*b"<think>\nhm\n</think>\n\n", *HOSTILE, 257])
        await browser.open(gateway.url)
        await browser.say(f"{name}:")
        await browser.until(".again", lambda text: text == "Regenerate")
        assert (await browser.text(ANSWER)).startswith("<img src=x onerror=")
        assert await browser.texts(f"{ANSWER} pre") == ["<b onclick=window.hit=1>"]
        assert not await browser.run("return window.hit || document.querySelectorAll('.turn :is(img, script, b, i, u)').length")
        assert await browser.text(".reasoning") == "Reasoning"
        await browser.click(".reasoning summary")
        assert await browser.text(".reasoning .text") == "hm"


async def test_tool_calls_are_shown(browser, scripted_model, watched):
    async with scripted_service(scripted_model, max_model_len=1024, num_pages=2048) as service, watched(service.server) as gateway:
        name = service.plan([*b'<tool_call>{"name": "look", "arguments": {"at": "<b>"}}</tool_call>', 257])
        await browser.open(gateway.url)
        await browser.fill("[name=tools]", '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]')
        await browser.say(f"{name}:")
        assert await browser.until(".call", lambda text: text.endswith("}")) == 'calls look\n{"at": "<b>"}'


async def test_a_key_is_asked_for_and_kept_with_the_tab(browser, scripted_model, watched, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    async with (
        running(scripted_model, "--api-keys-file", str(keys), "--admin-key-file", str(keys), "--worker", "127.0.0.1:1") as server,
        watched(server, "--admin-key-file", str(keys)) as gateway,
    ):
        await browser.open(gateway.url)
        assert "wants an API key" in await browser.until("#models-trouble", lambda text: text)
        await browser.fill("[name=key]", "right")
        await browser.press(Keys.TAB)
        assert await browser.until("#model", lambda text: text) and not await browser.texts("#models-trouble")
        assert await browser.run("return [sessionStorage['pypto-serving.key'], JSON.stringify(localStorage).includes('right')]") == [
            "right",
            False,
        ]


async def test_nothing_is_asked_of_anybody_else(browser, fake_front):
    await browser.open(fake_front.gateway.url)
    await browser.say("hello")
    await browser.until(".again", lambda text: text)
    await browser.click("#to-service")
    await browser.until("#off", lambda text: text)
    urls = [url for url in await browser.requested_urls() if not url.startswith("data:")]
    assert len(urls) > 10 and all(url.startswith(f"{fake_front.gateway.url}/") for url in urls)
    assert await browser.complaints() == []


async def test_a_whole_service_answers(browser, tiny_checkpoint, watched):
    async with real_service(tiny_checkpoint("llama")) as service, watched(service.server) as gateway:
        await browser.open(gateway.url)
        await browser.fill("[name=max_tokens]", "12")
        await browser.say("hello")
        assert "12 tokens" in await browser.until(".foot", lambda text: "token" in text)
