"""The routes of the page, without a browser."""

import asyncio
import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
from harness.running_control_plane import running
from harness.service import scripted_service

import clients.gateway

FILES = sorted((Path(clients.gateway.__file__).parent / "page").iterdir())


class Links(HTMLParser):
    """What a document names, and what it holds that the security policy forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.forbidden: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.urls += [value for name, value in attributes if name in ("src", "href") and not value.startswith("#")]
        self.forbidden += [(tag, name) for name, _ in attributes if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in dict(attributes)):
            self.forbidden.append((tag, ""))


async def test_the_page_is_served_with_a_strict_policy(fake_front):
    answer = await fake_front.http.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff" and not Links(answer.text).forbidden


async def test_what_the_page_names_is_there_and_nothing_else_is(fake_front):
    links = Links((await fake_front.http.get("/")).text)
    imports = [name for path in FILES for name in re.findall(r'from "\./(\S+)"', path.read_text())]
    for url in (*links.urls, *(f"/page/{name}" for name in imports)):
        assert (await fake_front.http.get(url)).status_code == 200, url
    for path in FILES:
        assert (await fake_front.http.get(f"/page/{path.name}")).content == path.read_bytes()
    assert (await fake_front.http.get("/page/../config.py")).status_code == 404


async def test_a_file_that_has_not_changed_is_not_sent_again(fake_front):
    first = await fake_front.http.get("/page/style.css")
    again = await fake_front.http.get("/page/style.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-cache"
    assert (await fake_front.http.head("/")).status_code == 200


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in FILES) < 64 * 1024


async def test_without_flags_the_state_is_empty_and_says_how_to_get_one(fake_front):
    told = (await fake_front.http.get("/state")).json()
    assert (told["control_planes"], told["activity"]) == ([], None)
    assert told["missing_flags"] == ["--admin-target HOST:PORT", "--metrics-url URL"]


async def test_the_state_is_that_of_the_service_and_tells_no_text(scripted_model, watched):
    async with scripted_service(scripted_model, step_seconds=0.05, max_model_len=1024) as service, watched(service.server) as gateway:
        asking = asyncio.ensure_future(service.stream("secret:", max_tokens=900))
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            while not (state := (await http.get("/state")).json())["control_planes"][0]["workers"][0]["num_running"]:
                await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert state["control_planes"][0]["workers"][0]["address"] == service.worker.address and state["activity"]["is_healthy"]
    assert "secret" not in str(state) and "token_ids" not in str(state)


async def test_the_state_wants_the_key_that_control_planes_want(scripted_model, watched, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    async with (
        running(scripted_model, "--api-keys-file", str(keys), "--admin-key-file", str(keys), "--worker", "127.0.0.1:1") as server,
        watched(server, "--admin-key-file", str(keys)) as gateway,
        httpx.AsyncClient() as http,
    ):
        url = f"{gateway.url}/state"
        answers = [await http.get(url, headers={"authorization": f"Bearer {key}"}) for key in ("right", "wrong", "right")]
        assert [answer.status_code for answer in answers] == [200, 401, 200]
        assert (await http.get(url)).status_code == 401


async def test_many_viewers_cost_one_reading_a_second(scripted_model, watched):
    async with scripted_service(scripted_model) as service, watched(service.server) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            answers = await asyncio.gather(*(http.get("/state") for _ in range(50)))
        assert len({answer.json()["at"] for answer in answers}) <= 2
