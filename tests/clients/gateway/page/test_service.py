"""The live view, in a browser, of a whole service."""

import asyncio
import re

import pytest
from harness.service import scripted_service

pytestmark = pytest.mark.slow

RUNNING = ".figure:first-child .value"


async def test_workers_pages_and_speeds_change_with_the_load(browser, scripted_model, watched):
    async with scripted_service(scripted_model, step_seconds=0.05, max_model_len=1024) as service, watched(service.server) as gateway:
        await browser.open(f"{gateway.url}/#service")
        assert service.worker.address in await browser.until("#workers", lambda text: "512 free" in text or "511 free" in text)
        assert "in session" in await browser.text("#workers") and await browser.text(RUNNING) == "0"
        asking = asyncio.ensure_future(service.stream("endless:", max_tokens=900))
        await browser.until(RUNNING, lambda text: text == "1")
        await browser.until("#workers", lambda text: re.search(r"^[1-9]\d* referenced", text, re.MULTILINE) and "1 running" in text)
        assert "median" in await browser.until("#figures", lambda text: "median" in text)
        grows = "return [...document.querySelectorAll('.strip span')].map(e => Number(e.style.flexGrow))"
        assert (await browser.run(grows))[0] > 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await browser.until(RUNNING, lambda text: text == "0")


async def test_errors_are_listed_by_status(browser, scripted_model, watched):
    async with scripted_service(scripted_model) as service, watched(service.server) as gateway:
        await browser.open(f"{gateway.url}/#service")
        await browser.until("#counts", lambda text: "No call has failed" in text)
        assert await service.refusal("x:", max_tokens=10**6)
        assert "invalid argument" in await browser.until("#counts", lambda text: "ago" in text or "now" in text)


async def test_a_worker_that_is_lost_is_told(browser, scripted_model, watched):
    async with scripted_service(scripted_model) as service, watched(service.server) as gateway:
        await browser.open(f"{gateway.url}/#service")
        await browser.until("#workers", lambda text: "in session" in text)
        await service.worker.kill()
        assert "refused" in await browser.until("#workers", lambda text: "connecting" in text)
        await service.worker.start()
        await browser.until("#workers", lambda text: "in session" in text)


async def test_without_flags_it_says_how_to_turn_it_on(browser, fake_front):
    await browser.open(f"{fake_front.gateway.url}/#service")
    told = await browser.until("#off", lambda text: text)
    assert "--admin-target" in told and "--metrics-url" in told


async def test_nobody_is_asked_while_nobody_looks(browser, fake_front):
    await browser.open(f"{fake_front.gateway.url}/#service")
    await browser.until("#off", lambda text: text)
    await browser.click("#to-chat")
    await browser.requested_urls()
    await asyncio.sleep(2.5)
    assert await browser.requested_urls() == []
