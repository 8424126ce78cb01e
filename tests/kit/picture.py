"""Takes the pictures of a report that README shows, light and dark.

    scripts/demo
    .venv/bin/python -m tests.kit.picture build/enrich_flights.html docs/images

It needs a browser: on Debian `apt-get install chromium-headless-shell`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from PIL import Image

from tests.kit.browser import MISSING, browser, find_browser

WIDTH = 1100  # as wide as a page gets before it has more columns
SCALE = 2  # sharp on good screens
COLOURS = 64  # are enough for smooth letters, in a small file
END = """
(() => {
  const heading = [...document.querySelectorAll('h3')].find(one => one.textContent === 'Where the time went');
  return heading.getBoundingClientRect().top - 24;
})()
"""


async def take_pictures(report: Path, folder: Path) -> None:
    """Of the report's beginning: the overview, and the first function with its verdict and its figures."""
    program = find_browser()
    if program is None:
        raise SystemExit(MISSING)
    with tempfile.TemporaryDirectory() as files:
        async with browser(program, Path(files)) as chromium, chromium.page() as page:
            for theme in ("light", "dark"):
                await page.show(report.resolve(), width=WIDTH, theme=theme)
                clip = {"x": 0, "y": 0, "width": WIDTH, "height": await page.evaluate(END), "scale": SCALE}
                picture = folder / f"report-{theme}.png"
                await page.take_picture(picture, clip=clip)
                Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_pictures(args.report, args.folder))
