"""OpenTelemetry gets each figure once, under names that follow its conventions, and costs nothing without an SDK."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, generate_latest

from asyncudf._observe.export import AT_ONCE, RECORDS, Exporter
from asyncudf._observe.function_metrics import KINDS_APART, FunctionMetrics
from asyncudf._observe.time_account import State

FUNCTION = {"code.function.name": "jobs.weather", "asyncudf.entry_point": "column"}


class Collected:
    """What an SDK has got: the instruments, and the value of each by its attributes."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        scopes = [scope for part in data.resource_metrics for scope in part.scope_metrics] if data else []
        assert {scope.scope.name for scope in scopes} <= {"asyncudf"}
        self.instruments = {metric.name: metric for scope in scopes for metric in scope.metrics}

    def point(self, name: str, **attributes: str) -> Any:
        wanted = {**FUNCTION, **{key.replace("__", "."): value for key, value in attributes.items()}}
        points = self.instruments[name].data.data_points if name in self.instruments else []
        return next((point for point in points if dict(point.attributes or {}) == wanted), None)

    def value(self, name: str, **attributes: str) -> float:
        point = self.point(name, **attributes)
        return 0 if point is None else point.value


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """An SDK that is set up; what it collects is read with `Collected`."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    yield reader
    provider.shutdown()


def exporter() -> Exporter:
    return Exporter("jobs.weather", "column")


def figures(rows: int, latency: float = 0.05, seconds: float = 10.0, **others: Any) -> FunctionMetrics:
    told = FunctionMetrics(tasks=1, seconds=seconds, rows=rows, results=rows, calls=rows, attempts=rows, **others)
    told.latency.add([latency] * rows)
    told.time[State.CALLS_BUSY] = seconds
    return told


class TestCounters:
    def test_partial_sums_of_the_tasks_of_one_worker_add_up(self, sdk: InMemoryMetricReader) -> None:
        """A Python worker runs many tasks, each with its own exporter; one of them fails in the middle."""
        for _ in range(3):
            task = exporter()
            for rows in (5, 10, 10):
                task.export(figures(rows), 1, 1)
        exporter().export(figures(7), 4, 0)
        told = Collected(sdk)
        assert [told.value(f"asyncudf.{name}") for name in ("rows", "results", "calls", "attempts")] == [37] * 4
        assert told.point("asyncudf.call.duration").count == 37

    def test_what_is_in_progress_goes_up_and_down(self, sdk: InMemoryMetricReader) -> None:
        first, second = exporter(), exporter()
        first.export(figures(10), 20, 30)
        second.export(figures(10), 5, 0)
        told = Collected(sdk)
        assert (told.value("asyncudf.call.active"), told.value("asyncudf.row.queued")) == (25, 30)
        first.export(figures(10), 0, 0)
        told = Collected(sdk)
        assert (told.value("asyncudf.call.active"), told.value("asyncudf.row.queued")) == (5, 0)

    def test_errors_are_told_by_their_type(self, sdk: InMemoryMetricReader) -> None:
        """Those that are not told apart any more have the name that the conventions give them."""
        totals, one = figures(0), exporter()
        for number in range(KINDS_APART + 3):
            totals.note_error(f"Error{number}", str)
        one.export(totals, 0, 0)
        totals.note_error("Error0", str)
        one.export(totals, 0, 0)
        told = Collected(sdk)
        assert told.value("asyncudf.errors", error__type="Error0") == 2
        assert told.value("asyncudf.errors", error__type="Error1") == 1
        assert told.value("asyncudf.errors", error__type="_OTHER") == 3

    def test_the_rest_has_its_instruments(self, sdk: InMemoryMetricReader) -> None:
        """Names and units as in the conventions: lower case, no `total`, seconds, and what is counted in braces."""
        counts = {"abandoned": 1, "timeouts": 2, "failures": 3, "dead_letters": 4, "throttled": 8}
        totals, one = figures(1, **counts, store_hits=5, store_misses=6, shared_flights=7), exporter()
        totals.note_error("ValueError", str)
        for cost in (0.5, 1.25):
            totals.spent = {"USD": cost}
            one.export(totals, 1, 1)
        told = Collected(sdk)
        names = ("abandoned_calls", "timeouts", "failed_rows", "dead_letters", "throttled_attempts")
        assert [told.value(f"asyncudf.{name}") for name in names] == [1, 2, 3, 4, 8]
        outcomes = ("hit", "miss", "shared")
        assert [told.value("asyncudf.store.lookups", asyncudf__store__outcome=one) for one in outcomes] == [5, 6, 7]
        assert told.value("asyncudf.time", asyncudf__state="calls_busy") == 10
        assert told.value("asyncudf.spent", asyncudf__unit="USD") == 1.25
        assert len(told.instruments) == 16
        for name, metric in told.instruments.items():
            assert re.fullmatch(r"asyncudf\.(?!.*total)[a-z._]+", name)
            assert (metric.description or "").endswith(".")
            unit = "s" if name.endswith((".time", ".duration")) else r"\{?[a-z]*[a-rt-z]\}?"
            assert re.fullmatch(unit, metric.unit or "")


class TestLatencies:
    def test_all_are_recorded_where_there_are_few(self, sdk: InMemoryMetricReader) -> None:
        """Within 1%, in buckets of seconds, not in the SDK's own, which are for milliseconds."""
        totals, one = FunctionMetrics(tasks=1, seconds=1.0), exporter()
        totals.latency.add([0.02] * 90 + [0.3] * 9 + [20.0])
        one.export(totals, 0, 0)
        point = Collected(sdk).point("asyncudf.call.duration")
        told = dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))
        assert (told[0.025], told[0.5], told[30], point.count) == (90, 9, 1, 100)
        assert point.sum == pytest.approx(totals.latency.seconds, rel=0.01)

    def test_of_many_it_is_a_sample_with_the_same_shares(self, sdk: InMemoryMetricReader) -> None:
        """An instrument takes longer for each than many calls do, and the event loop waits for it."""
        totals, one = FunctionMetrics(tasks=1, seconds=0.0), exporter()
        for number, seconds in enumerate((0.0, 1.0, 2.0, 3600.0)):
            totals.latency.add([0.02] * 90_000 + [0.3] * 9_000 + [20.0] * 1_000)
            totals.seconds = seconds
            one.export(totals, 0, 0)
            point = Collected(sdk).point("asyncudf.call.duration")
            told = dict(zip(point.explicit_bounds, point.bucket_counts, strict=False))
            assert abs(point.count - AT_ONCE - number * RECORDS) <= 1
            assert abs(told[0.025] / point.count - 0.9) < 0.001
            assert abs(told[30] / point.count - 0.01) < 0.002

    def test_long_calls_that_are_rare_are_not_left_out_of_a_sample(self, sdk: InMemoryMetricReader) -> None:
        one = exporter()
        totals = FunctionMetrics(tasks=1)
        totals.latency.add([0.001 * 1.03**number for number in range(200)] * 100)
        one.export(totals, 0, 0)
        point = Collected(sdk).point("asyncudf.call.duration")
        assert abs(point.count - AT_ONCE) <= 1
        assert point.sum / point.count == pytest.approx(totals.latency.mean, rel=0.05)

    @given(st.lists(st.lists(st.floats(1e-6, 100), max_size=30), max_size=5))
    def test_few_are_all_recorded_however_they_come(self, parts: list[list[float]]) -> None:
        reader, totals, one = InMemoryMetricReader(), FunctionMetrics(tasks=1), exporter()
        provider = MeterProvider([reader], shutdown_on_exit=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "get_meter_provider", lambda: provider)
            for part in parts:
                totals.latency.add(part)
                totals.seconds += 1
                one.export(totals, 0, 0)
        point = Collected(reader).point("asyncudf.call.duration")
        assert (point.count if point else 0) == sum(map(len, parts))


class TestWithoutAnSDK:
    def test_nothing_is_imported(self) -> None:
        program = (
            "import sys; import asyncudf\n"
            "from asyncudf._observe.export import Exporter\n"
            "from asyncudf._observe.function_metrics import FunctionMetrics\n"
            "Exporter('f', 'column').export(FunctionMetrics(rows=1), 1, 1)\n"
            "assert not [name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'rich', 'IPython')]"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    @pytest.mark.parametrize("provider", ["as it is", "none"])
    def test_the_api_alone_gets_nothing(self, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
        given = metrics.get_meter_provider() if provider == "as it is" else metrics.NoOpMeterProvider()
        monkeypatch.setattr(type(given), "get_meter", lambda *_: pytest.fail("asked for a meter"))
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: given)
        exporter().export(figures(10), 1, 1)

    def test_an_sdk_that_is_set_up_while_the_task_runs_gets_all(
        self, sdk: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a function that sets it up when it is opened."""
        one = exporter()
        with monkeypatch.context() as patch:
            patch.setattr(metrics, "get_meter_provider", metrics.NoOpMeterProvider)
            one.export(figures(10), 1, 1)
        one.export(figures(15), 0, 0)
        told = Collected(sdk)
        assert (told.value("asyncudf.rows"), told.value("asyncudf.call.active")) == (15, 0)


class TestNeverFails:
    @pytest.mark.parametrize("what", ["get_meter_provider", "get_meter", "create_counter", "record"])
    def test_an_sdk_that_fails_ends_the_export_and_is_told_once(
        self, what: str, sdk: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls = 0

        def fail(*_: object, **__: object) -> None:
            nonlocal calls
            calls += 1
            raise OSError("no route to the collector")

        provider = metrics.get_meter_provider()
        meter = provider.get_meter("asyncudf")
        place = {
            "get_meter_provider": metrics, "get_meter": type(provider), "create_counter": type(meter),
            "record": type(meter.create_histogram("asyncudf.call.duration")),
        }  # fmt: skip
        monkeypatch.setattr(place[what], what, fail)
        one = exporter()
        for rows in range(1, 4):
            one.export(figures(rows), 0, 0)
        assert calls == 1
        assert [(record.name, record.levelname) for record in caplog.records if record.name == "asyncudf"] == [
            ("asyncudf", "WARNING")
        ]


def test_prometheus_can_scrape_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    try:
        totals = figures(10)
        totals.note_error("ValueError", str)
        exporter().export(totals, 3, 0)
        page = generate_latest(REGISTRY).decode()
    finally:
        provider.shutdown()
    told = {line.partition("{")[0]: line for line in page.splitlines() if line.startswith("asyncudf_")}
    assert told["asyncudf_rows_total"].endswith(" 10.0")
    assert told["asyncudf_call_active"].endswith(" 3.0")
    assert told["asyncudf_call_duration_seconds_count"].endswith(" 10.0")
    assert 'code_function_name="jobs.weather"' in told["asyncudf_rows_total"]
    assert 'error_type="ValueError"' in told["asyncudf_errors_total"]
