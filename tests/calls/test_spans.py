"""With `spans=True` each attempt is a span of OpenTelemetry, below what surrounds it; else there is nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pandas as pd
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from asyncudf import AsyncFunction, AsyncUDFError, OptionError, ResultFuture, RetryStrategy, async_pandas_udf
from asyncudf.testing import run_rows


class Spans:
    """What an SDK has got."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def told(self, name: str) -> list[Any]:
        """An attribute of each."""
        return [(span.attributes or {}).get(name) for span in self.ended]


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """An SDK that is set up."""
    spans = Spans()
    monkeypatch.setattr(trace, "get_tracer", spans.provider.get_tracer)
    yield spans
    spans.provider.shutdown()


async def waits(x: int) -> int:
    await asyncio.sleep(1)
    return x


async def at_once(x: int) -> int:
    return x


async def several(x: int) -> AsyncIterator[int]:
    yield x
    await asyncio.sleep(1)
    yield x


async def vectorized(x: pd.Series) -> pd.Series:
    await asyncio.sleep(1)
    return x


def in_a_thread(x: int) -> int:
    return x


class Rich(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        asyncio.get_running_loop().call_later(1, result_future.complete, [value])


FORMS: list[Any] = [waits, at_once, several, vectorized, in_a_thread, Rich()]


@pytest.mark.parametrize("function", FORMS, ids=lambda function: getattr(function, "__name__", "Rich"))
class TestEveryForm:
    def test_each_attempt_is_a_span(self, function: Any, sdk: Spans) -> None:
        """Of its name, below nothing, and without its arguments."""
        clock: Any = "real" if function is in_a_thread else "virtual"
        plain = run_rows(function, [7, 8, 9], clock=clock, returnType="long")
        assert not sdk.ended
        assert run_rows(function, [7, 8, 9], clock=clock, returnType="long", spans=True) == plain
        name = getattr(function, "__name__", "Rich")
        full = f"{__name__}.{name}"
        assert sdk.told("asyncudf.call.rows") == ([3] if function is vectorized else [1, 1, 1])
        for span in sdk.ended:
            assert (span.name, span.parent, span.status.status_code) == (name, None, StatusCode.UNSET)
            assert dict(span.attributes or {}) == {
                "code.function.name": full, "asyncudf.partition": 0, "asyncudf.call.attempt": 1,
                "asyncudf.call.rows": len(plain) if function is vectorized else 1,
            }  # fmt: skip
            assert not span.events


class TestErrors:
    def test_each_attempt_has_its_own_number_and_status(self, sdk: Spans) -> None:
        attempts = 0

        async def fails_twice(x: int) -> int:
            nonlocal attempts
            attempts += 1
            if attempts < 3:
                raise ValueError("no answer of http://me:secret@service/?key=1")
            return x

        run_rows(fails_twice, [1], retry=RetryStrategy.fixed_delay(3, 1.0), spans=True)
        assert sdk.told("asyncudf.call.attempt") == [1, 2, 3]
        assert sdk.told("error.type") == ["ValueError", "ValueError", None]
        first, _, last = sdk.ended
        assert (first.status.status_code, last.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
        assert "secret" not in (text := first.to_json())
        assert "key=1" not in text
        assert "service" in (first.status.description or "")

    def test_a_result_future_that_gets_an_error_is_one(self, sdk: Spans) -> None:
        class Fails(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete_exceptionally(KeyError("x"))

        run_rows(Fails(), [1], returnType="long", on_error="null", spans=True)
        assert sdk.told("error.type") == ["KeyError"]

    def test_an_attempt_that_is_cancelled_at_its_deadline_is_one(self, sdk: Spans) -> None:
        run_rows(waits, [1], timeout=0.5, on_error="null", spans=True)
        assert sdk.told("error.type") == ["CancelledError"]
        (span,) = sdk.ended
        assert span.end_time

    def test_when_the_task_fails_the_spans_of_all_calls_end(self, sdk: Spans) -> None:
        async def fails_late(x: int) -> int:
            await asyncio.sleep(10 - x)
            raise ValueError

        with pytest.raises(AsyncUDFError):
            run_rows(fails_late, range(5), spans=True)
        assert sorted(sdk.told("error.type")) == ["CancelledError"] * 4 + ["ValueError"]


class TestParents:
    def test_what_the_function_does_is_below_its_span(self, sdk: Spans) -> None:
        """Also in a task that it makes, and never below the span of another call."""

        async def nested(x: int) -> int:
            async def inner() -> None:
                with sdk.provider.get_tracer("client").start_as_current_span(f"inner {x}"):
                    await asyncio.sleep(x)

            await asyncio.gather(inner())
            return x

        run_rows(nested, [3, 1, 2], spans=True)
        calls = {span.context.span_id for span in sdk.ended if span.name == "nested" and span.context}
        inner = [span for span in sdk.ended if span.name.startswith("inner")]
        assert {span.parent.span_id for span in inner if span.parent} == calls
        assert len(calls) == 3

    def test_a_thread_is_below_its_span_too(self, sdk: Spans) -> None:
        def current(x: int) -> int:
            return trace.get_current_span().get_span_context().span_id % 10**15

        (told,) = run_rows(current, [1], clock="real", spans=True)
        (span,) = sdk.ended
        assert span.context is not None
        assert told == span.context.span_id % 10**15

    def test_spans_are_below_what_surrounds_the_calls(self, sdk: Spans) -> None:
        @contextlib.asynccontextmanager
        async def client() -> AsyncIterator[int]:
            with sdk.provider.get_tracer("mine").start_as_current_span("task"):
                yield 5

        async def with_client(x: int, client: int) -> int:
            return x + client

        run_rows(with_client, [1, 2], resources=client, spans=True)
        *calls, task = sdk.ended
        assert task.context is not None
        assert [span.parent and span.parent.span_id for span in calls] == [task.context.span_id] * 2

    @pytest.mark.parametrize("function", [waits, at_once])
    def test_nothing_of_a_span_is_left_for_the_next_row(self, function: Any, sdk: Spans) -> None:
        """Each is its own trace, also where one slot runs all of them."""
        run_rows(function, range(50), capacity=1, spans=True)
        assert len({span.context.trace_id for span in sdk.ended if span.context}) == 50
        assert {span.parent for span in sdk.ended} == {None}

    def test_a_slot_goes_on_after_a_span(self, sdk: Spans) -> None:
        """What is left in its context would end it: then each row would take a new task."""
        tasks: set[Any] = set()

        async def noting(x: int) -> int:
            tasks.add(asyncio.current_task())
            return x

        run_rows(noting, range(50), capacity=1, spans=True)
        assert len(tasks) < 5


class Fails(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError("no collector")

    def on_end(self, span: Any) -> None:
        raise OSError("no collector")


class TestOtherwise:
    def test_an_sdk_that_fails_harms_no_row(self, sdk: Spans) -> None:
        sdk.provider.add_span_processor(Fails())
        assert run_rows(waits, [1, 2], spans=True) == [1, 2]

    def test_without_an_sdk_it_changes_nothing(self) -> None:
        assert run_rows(waits, [1, 2], spans=True) == [1, 2]

    def test_without_the_api_it_is_an_error_where_the_function_is_declared(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
        with pytest.raises(OptionError, match=r'spans=True needs OpenTelemetry: pip install "asyncudf\[otel\]"'):
            async_pandas_udf(waits, spans=True)
        assert run_rows(waits, [1], spans=False) == [1]

    def test_without_the_api_on_an_executor_the_task_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        traced = async_pandas_udf(waits, spans=True)
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        with pytest.raises(AsyncUDFError, match=r"on every executor: pip install 'asyncudf\[otel\]'"):
            run_rows(traced, [1])
