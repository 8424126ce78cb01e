"""The page of a run looks right in a real browser: on a phone and on a desk, light and dark.

With `ASYNCUDF_PICTURES` set to a folder, pictures of all that is shown here are put there, for people.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from asyncudf._observe.reports.run_report import run_report
from tests.kit.browser import MISSING, Browser, browser, find_browser
from tests.kit.sample_runs import SAMPLES

pytestmark = pytest.mark.services

# What is in a box that scrolls may be wider than the page, as a table of many columns on a phone.
STICKS_OUT = """
[...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.scroll') && !element.matches('.scroll')) return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(element => `${element.tagName}.${element.getAttribute('class')}: ${element.textContent.slice(0, 60)}`)
"""

# The ratio of WCAG 2.2, of each text and what it stands on.
PALE = """
(() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255);
    const linear = parts.map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), pale = [];
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest('svg')) continue;
    texts += 1;
    const [one, other] = [light(getComputedStyle(element).color), light(ground(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) pale.push(`${contrast.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 60)}`);
  }
  return texts ? pale : ['no text'];
})()
"""

# Labels of an axis, and of quantiles, that stand on each other.
TOUCHING = """
[...document.querySelectorAll('.histogram')].flatMap(chart => {
  const labels = [...chart.querySelectorAll('.axis span, .mark > span')];
  const boxes = labels.map(label => label.getBoundingClientRect());
  return labels.flatMap((label, i) => labels.slice(i + 1).filter((_, j) => {
    const [a, b] = [boxes[i], boxes[i + 1 + j]];
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  }).map(other => `${label.textContent} and ${other.textContent}`));
})
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def chromium(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip(MISSING)
    stack = AsyncExitStack()
    started = runner.run(stack.enter_async_context(browser(program, tmp_path_factory.mktemp("browser"))))
    yield started
    runner.run(stack.aclose())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, sample in SAMPLES.items():
        run_report(sample(), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in SAMPLES}


async def look(chromium: Browser, path: Path, width: int, theme: str) -> dict[str, Any]:
    """What is to be seen of a page, with all its details open."""
    async with chromium.page() as page:
        await page.show(path, width=width, theme=theme)
        folder = os.environ.get("ASYNCUDF_PICTURES")
        if folder:
            await page.take_picture(Path(folder) / f"{path.stem}-{width}-{theme}.png")
        await page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
        seen = {
            "complaints": page.complaints,
            "requests": [url for url in page.requests if not url.startswith("data:")],
            "wider": await page.evaluate("document.documentElement.scrollWidth - innerWidth"),
            "sticks out": await page.evaluate(STICKS_OUT),
            "pale": await page.evaluate(PALE),
            "touching": await page.evaluate(TOUCHING),
        }
        if folder:
            await page.print(Path(folder) / f"{path.stem}.pdf")
        return seen


@pytest.mark.parametrize(("width", "theme"), [(360, "light"), (1440, "dark")])
@pytest.mark.parametrize("name", SAMPLES)
def test_all_is_in_its_place(
    name: str, width: int, theme: str, chromium: Browser, runner: asyncio.Runner, pages: dict[str, Path]
) -> None:
    seen = runner.run(look(chromium, pages[name], width, theme))
    assert seen == {
        "complaints": [],
        "requests": [pages[name].as_uri()],
        "wider": 0,
        "sticks out": [],
        "pale": [],
        "touching": [],
    }


def test_dark_is_dark_and_light_is_light(chromium: Browser, runner: asyncio.Runner, pages: dict[str, Path]) -> None:
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"

    async def brightness(theme: str, media: str = "screen") -> int:
        async with chromium.page() as page:
            await page.show(pages["plain"], width=800, theme=theme, media=media)
            return int(await page.evaluate(background))

    assert runner.run(brightness("light")) > 650
    assert runner.run(brightness("dark")) < 150
    assert runner.run(brightness("dark", "print")) > 650


def test_the_checks_see_what_is_wrong(chromium: Browser, runner: asyncio.Runner, tmp_path: Path) -> None:
    """A page with each of the faults: else a check that sees nothing would pass for ever."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><meta name=viewport content='width=device-width'><body>"
        "<p style='width: 2000px'>wide</p><p style='color: #999; background: #fff'>pale</p>"
        "<div class=histogram><div class=axis><span>1 ms</span><span style='margin-left: -10px'>2 ms</span></div></div>"
        "<script>console.error('no')</script><img src='missing.png'>"
    )
    seen = runner.run(look(chromium, bad, 360, "light"))
    assert seen["wider"] > 1000
    assert [text.partition(":")[0] for text in seen["sticks out"]] == ["P.null"]
    assert [text.partition(": ")[2] for text in seen["pale"]] == ["pale"]
    assert seen["touching"] == ["1 ms and 2 ms"]
    assert any("no" in complaint for complaint in seen["complaints"])
    assert len(seen["requests"]) == 2
