"""What a terminal shows while a job runs, recorded from a real job of a few seconds."""

from __future__ import annotations

import asyncio
import html
import io
import os
import random
import sys
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession
from rich.console import Console
from rich.text import Text

from asyncudf import AsyncStream, RetryStrategy, async_pandas_udf, http, monitor
from asyncudf._observe.reports import displays
from asyncudf._observe.reports.progress import Progress, Snapshot, line, tasks

from .svg import svg

__all__ = ("picture",)

COLUMNS, FRAMES = 116, 16  # characters; pictures that are kept, the last one among them
LINE, CHARACTER, MARGIN = 18, 7.3, 14  # pixels
REST = 4.0  # seconds for which the end is shown

STYLE = """
  .screen { fill: #0d1117 }
  text.line { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6edf3; white-space: pre }
  .frame { visibility: hidden }"""


class Frame(NamedTuple):
    """What is shown, and since how many seconds of the run."""

    seconds: float
    text: Text


class Recorder(displays.TerminalDisplay):
    """The display of a terminal, which keeps what it shows."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO(), width=COLUMNS, force_terminal=True))
        self.frames: list[Frame] = []

    def _draw(self, functions: Sequence[Progress], snapshot: Snapshot) -> None:
        if functions:
            self.frames.append(Frame(snapshot.seconds, Text("\n".join([*map(line, functions), tasks(snapshot)]))))


def recorded() -> list[Frame]:
    """Two functions, one after the other; a call in a hundred of the second fails at first."""

    @async_pandas_udf(capacity=50)
    async def geocode(id: int) -> str:  # noqa: A002 - the name of a column
        await asyncio.sleep(0.08)
        return f"city {id}"

    @async_pandas_udf(capacity=100, retry=RetryStrategy.fixed_delay(attempts=3, delay=0.2))
    async def weather(geocode: str) -> float:
        await asyncio.sleep(0.12)
        if random.random() < 0.01:
            raise http.RetryableError(503)
        return float(len(geocode))

    def run(spark: SparkSession, rows: int) -> None:
        stream = AsyncStream(spark.range(0, rows, 1, 8))
        stream = stream.ordered_wait(geocode, "id").ordered_wait(weather, "geocode")
        stream.write.format("noop").mode("overwrite").save()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    recorder = Recorder()
    displays.progress_display = lambda stream=None: recorder  # what `progress=True` asks for
    with spark:
        run(spark, 100)  # Spark's first job takes seconds to start
        with monitor(spark, progress=True):
            run(spark, 8000)
    return recorder.frames


def chosen(frames: list[Frame]) -> list[Frame]:
    """Some of them, evenly over the time; their times are those since the first."""
    began, ended = frames[0].seconds, frames[-1].seconds
    kept: dict[int, Frame] = {}
    for one in frames:
        kept.setdefault(int((one.seconds - began) / (ended - began) * (FRAMES - 1)), one)
    kept[FRAMES - 1] = frames[-1]
    return [Frame(one.seconds - began, one.text) for one in kept.values()]


def lines_of(text: Text) -> list[str]:
    """Its lines, as text of an SVG."""
    places = ((f"{MARGIN + number * LINE - 6}", line) for number, line in enumerate(text.plain.split("\n"), 1))
    return [f'<text class="line" x="{MARGIN}" y="{y}">{html.escape(line)}</text>' for y, line in places]


def picture() -> str:
    """The recording, as an SVG that plays in the time of the job; its end is shown where nothing may move."""
    frames = chosen(recorded())
    seconds = frames[-1].seconds + REST
    rules = [
        STYLE,
        f"  .f{len(frames) - 1} {{ visibility: visible }}",
        "  @media (prefers-reduced-motion: no-preference) {",
    ]
    rules.append(f"  .frame {{ animation: {seconds:.1f}s step-end infinite }}")
    lines = ['<rect class="screen" x="-8" y="-4" width="100%" height="100%" rx="6"/>']
    for number, frame in enumerate(frames):
        shown = [100 * one.seconds / seconds for one in frames[number : number + 2]]
        steps = {0.0: "hidden", shown[0]: "visible", 100.0: "hidden"} | dict.fromkeys(shown[1:], "hidden")
        text = " ".join(f"{share:.1f}% {{ visibility: {value} }}" for share, value in sorted(steps.items()))
        rules.append(f"  .f{number} {{ animation-name: f{number} }} @keyframes f{number} {{ {text} }}")
        lines += [f'<g class="frame f{number}">', *lines_of(frame.text), "</g>"]
    told = html.escape(f"It ends with: {' '.join(frames[-1].text.plain.split())}")
    height = 2 * MARGIN + LINE * max(len(frame.text.split("\n")) for frame in frames)
    width = 2 * MARGIN + CHARACTER * COLUMNS
    style = "\n".join([*rules, "  }\n"])
    return svg("Progress of two functions in a terminal", told, width, height, lines, style=style)
