"""What the page looks like. SCREENSHOTS=docs/page keeps the images, which docs/gateway.md shows."""

import asyncio
import io
import os
from pathlib import Path

import pytest
from harness.browser import DESKTOP, TELEPHONE
from harness.service import scripted_service
from PIL import Image

pytestmark = pytest.mark.slow

#: Size of the window, scheme of colours, and whether that is a bright one.
LOOKS = {"light": (DESKTOP, "light", True), "dark": (DESKTOP, "dark", False), "telephone": (TELEPHONE, "light", True)}

QUESTION = "Explain batch invariance, with an example in Python:"
ANSWER = b"""<think>
A short definition first, then the smallest example that shows it.
</think>

A result is **batch-invariant** when it does not depend on what else runs beside it: a request has the same tokens alone and among others.

Sums of floating point numbers depend on their order, so the order has to be fixed:

```python
def row_sum(row):
    total = 0.0
    for value in row:  # one order, whatever the batch
        total += value
    return total
```

`torch.sum` may choose another order for another shape."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where images go."""
    kept = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def keep(png: bytes, path: Path) -> float:
    """Write an image in few colours, which halves it; returns its brightness from 0 to 255."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    return sum(image.resize((1, 1)).getpixel((0, 0))) / 3


@pytest.mark.parametrize("look", LOOKS)
async def test_the_chat(browser, scripted_model, watched, folder, look):
    size, scheme, is_bright = LOOKS[look]
    async with scripted_service(scripted_model, max_model_len=1024, num_pages=2048) as service, watched(service.server) as gateway:
        service.script.outputs[QUESTION[:-1]] = [*ANSWER, 257]
        await browser.open(gateway.url, size, scheme)
        await browser.say(QUESTION)
        await browser.until(".again", lambda text: text)
        await browser.run("scrollTo(0, 0)")
        assert (keep(await browser.screenshot(), folder / f"chat-{look}.png") > 128) is is_bright


@pytest.mark.parametrize("look", LOOKS)
async def test_the_service(browser, scripted_model, watched, folder, look):
    size, scheme, is_bright = LOOKS[look]
    limits = {"step_seconds": 0.03, "max_model_len": 1024, "num_pages": 1536, "max_step_tokens": 256, "max_lanes": 6}
    async with scripted_service(scripted_model, **limits) as service, watched(service.server) as gateway:
        await asyncio.gather(*(service.stream(f"{letter * 500}:", max_tokens=8) for letter in "abc"))
        await service.refusal("x:", max_tokens=10**6)
        asking = [asyncio.ensure_future(service.stream(f"{'a' * 400}{index}:", max_tokens=500)) for index in range(8)]
        await browser.open(f"{gateway.url}/#service", size, scheme)
        await browser.until("#figures", lambda text: "median" in text and "for capacity" in text)
        assert (keep(await browser.screenshot(), folder / f"service-{look}.png") > 128) is is_bright
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
