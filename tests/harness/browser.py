"""A headless Chromium that tests look through; needs Debian's packages chromium and chromium-driver."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.monitoring import debian_program
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.keys import Keys

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_TEXTS = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.innerText.trim())"
_POLL_SECONDS = 0.05
#: Width, height, and pixels for each of CSS.
DESKTOP, TELEPHONE = (1120, 760, 1), (390, 780, 2)


def start_chromium(profile: Path) -> "Browser":
    """A browser with a profile of its own; the test is skipped where there is none."""
    options = ChromeOptions()
    options.binary_location = debian_program("chromium", "chromium")
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    return Browser(Chrome(options, ChromeService(debian_program("chromedriver", "chromium-driver"))))


class Browser:
    """One tab. Its methods leave the event loop to the server that it talks with."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver
        self._size: tuple[int, int, int] = DESKTOP

    def quit(self) -> None:
        """End the process."""
        self._driver.quit()

    async def open(self, url: str, size: tuple[int, int, int] = DESKTOP, scheme: str = "light") -> None:
        """Open a page in a window of a size, with nothing stored, and forget what was logged before."""
        width, height, scale = size
        shape = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": size == TELEPHONE}
        await self._command("Emulation.setDeviceMetricsOverride", shape)
        await self._command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        await self._command("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        await asyncio.to_thread(self._driver.get, "about:blank")  # the same address with another fragment would load nothing
        for kind in ("performance", "browser"):
            await asyncio.to_thread(self._driver.get_log, kind)
        await asyncio.to_thread(self._driver.get, url)

    async def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return await asyncio.to_thread(self._driver.execute_script, script, *arguments)

    async def texts(self, selector: str) -> list[str]:
        """What can be read in each element that is visible."""
        found: list[str] = await self.run(_TEXTS, selector)
        return found

    async def text(self, selector: str) -> str:
        """What can be read in all of them."""
        return "\n".join(await self.texts(selector))

    async def until(self, selector: str, holds: Callable[[str], Any]) -> str:
        """The text of elements once it is as wanted; tests have a time limit of their own."""
        while not holds(text := await self.text(selector)):
            await asyncio.sleep(_POLL_SECONDS)
        return text

    async def click(self, selector: str) -> None:
        """Click an element."""
        await asyncio.to_thread(lambda: self._driver.find_element("css selector", selector).click())

    async def fill(self, selector: str, text: str) -> None:
        """Write into a field, as its user would."""
        await asyncio.to_thread(lambda: self._driver.find_element("css selector", selector).send_keys(text))

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        await asyncio.to_thread(lambda: ActionChains(self._driver, duration=0).send_keys(*keys).perform())

    async def say(self, text: str) -> None:
        """Type a message and send it."""
        await self.fill("#message", text)
        await self.press(Keys.ENTER)

    async def requested_urls(self) -> list[str]:
        """Where requests went since the page was opened."""
        entries = await asyncio.to_thread(self._driver.get_log, "performance")
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]

    async def complaints(self) -> list[str]:
        """What the console says: errors of scripts, refusals of the security policy."""
        return [entry["message"] for entry in await asyncio.to_thread(self._driver.get_log, "browser")]

    async def screenshot(self) -> bytes:
        """PNG of the window."""
        return await asyncio.to_thread(self._driver.get_screenshot_as_png)

    async def _command(self, name: str, parameters: dict[str, Any]) -> None:
        await asyncio.to_thread(self._driver.execute_cdp_cmd, name, parameters)
