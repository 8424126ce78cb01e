"""A function that makes spans of its own, as docs/observe.md shows, has one for each attempt, and none is mixed up."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import asyncudf
from asyncudf import RetryStrategy
from asyncudf.testing import run_rows

PAGE = Path(__file__).parents[2] / "docs" / "observe.md"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[ReadableSpan, ...]]]:
    """The spans that an SDK has got, which is set up."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter.get_finished_spans
    provider.shutdown()


def of_the_page(**replaced: Any) -> Any:
    """The page's function; `replaced`: names that its code finds."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "start_as_current_span" in block]
    program, _ = block.split("\n\nspark.")
    names: dict[str, Any] = {"asyncio": asyncio, "contextlib": contextlib, **vars(asyncudf), **replaced}
    exec(program, names)
    return names["traced"]


class Client:
    """Stands for asyncio: its `sleep` is a call of a client that makes a span, and fails once."""

    def __init__(self) -> None:
        self.failed = False

    async def sleep(self, seconds: float) -> None:
        with trace.get_tracer("client").start_as_current_span("request"):
            await asyncio.sleep(seconds)
            if not self.failed:
                self.failed = True
                raise ConnectionError("no route")


def test_each_attempt_is_a_span_with_those_of_the_client_below_it(
    ended: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    retry = RetryStrategy.fixed_delay(2, 1.0)
    assert run_rows(of_the_page(asyncio=Client()), [7, 8, 9], retry=retry) == [7, 8, 9]
    calls = [span for span in ended() if span.name == "look up"]
    requests = [span for span in ended() if span.name == "request"]
    assert sorted((span.attributes or {})["attempt"] for span in calls) == [1, 1, 1, 2]
    assert [span.status.is_ok for span in calls].count(False) == 1
    assert {span.parent for span in calls} == {None}
    assert sorted(span.parent.span_id for span in requests if span.parent) == sorted(
        span.context.span_id for span in calls if span.context
    )


def test_a_span_leaves_nothing_for_the_next_row_of_its_slot(ended: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    """What is left in its context would end the slot, and each row would take a new task."""
    tasks: set[Any] = set()

    class Noting:
        @staticmethod
        async def sleep(seconds: float) -> None:
            tasks.add(asyncio.current_task())

    assert run_rows(of_the_page(asyncio=Noting()), range(50), capacity=1) == list(range(50))
    assert len({span.context.trace_id for span in ended() if span.context}) == 50
    assert len(tasks) < 5
