"""A real browser without a window: Chromium, over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = f"there is no browser here: {', '.join(PROGRAMS)}. On Debian: apt-get install chromium-headless-shell"
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip
ADDRESS = "DevTools listening on "


def find_browser() -> str | None:
    return next((found for program in PROGRAMS if (found := shutil.which(program))), None)


class Page:
    """One page that is open.

    Attributes:
        complaints: what the browser had to say: errors and warnings of any kind.
        requests: what the page asked for.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def send(self, method: str, **parameters: Any) -> Any:
        return await self._browser.send(method, parameters, self._session)

    async def show(self, path: Path, *, width: int, theme: str = "light", media: str = "screen") -> None:
        """Open a file, as wide and as light or dark as this."""
        for room in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{room}.enable")
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.send("Emulation.setDeviceMetricsOverride", **screen)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        await self.send("Emulation.setEmulatedMedia", media=media, features=features)
        loaded = self._browser.wait_for("Page.loadEventFired", self._session)
        await self.send("Page.navigate", url=path.as_uri())
        await loaded

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def take_picture(self, path: Path, *, clip: dict[str, float] | None = None) -> None:
        """Of the whole page, or of this part of it: its x, y, width, height, and scale."""
        part = {} if clip is None else {"clip": clip}
        picture = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, **part)
        path.write_bytes(base64.b64decode(picture["data"]))

    async def print(self, path: Path) -> None:
        """As PDF, on A4."""
        printed = await self.send("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(printed["data"]))

    def take_note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(told["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([argument.get("value") for argument in told["args"]]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])


class Browser:
    """Sends commands, and hands what comes to those who wait for it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._events: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    async def send(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        command = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(command if session is None else {**command, "sessionId": session})
        return await answer

    def wait_for(self, method: str, session: str) -> asyncio.Future[Any]:
        """The next event of this kind."""
        return self._events.setdefault((session, method), asyncio.get_running_loop().create_future())

    async def listen(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(RuntimeError(str(told["error"])))
                else:
                    answer.set_result(told["result"])
                continue
            session = told.get("sessionId", "")
            if session in self._pages:
                self._pages[session].take_note(told["method"], told["params"])
            if (session, told["method"]) in self._events:
                self._events.pop((session, told["method"])).set_result(told["params"])

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """An empty page."""
        target = (await self.send("Target.createTarget", {"url": "about:blank"}))["targetId"]
        attached = await self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        yield page
        await self.send("Target.closeTarget", {"targetId": target})


@asynccontextmanager
async def browser(program: str, folder: Path) -> AsyncIterator[Browser]:
    """Starts one, which keeps its files in this folder, and ends it."""
    process = await asyncio.create_subprocess_exec(
        program, *OPTIONS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        address = await asyncio.wait_for(_address(process.stderr), 60)
        draining = asyncio.ensure_future(process.stderr.read())  # or it would wait to be read
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
            started = Browser(socket)
            listening = asyncio.ensure_future(started.listen())
            yield started
            await started.send("Browser.close", {})  # `program` may be a script, which cannot be asked to end its child
            await listening
        await draining
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _address(lines: asyncio.StreamReader) -> str:
    told = []
    async for line in lines:
        told.append(line.decode(errors="replace"))
        if ADDRESS in told[-1]:
            return told[-1].partition(ADDRESS)[2].strip()
    raise RuntimeError("the browser did not start: " + "".join(told)[-1000:])
