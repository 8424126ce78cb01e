"""How the figures of a task leave it: the line in its log, and OpenTelemetry."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from .._errors.figures import number, rate, seconds, share, things
from .._errors.safe import one_line, which_errors
from .function_metrics import FIGURES, OTHERS, FunctionMetrics
from .latency_sketch import LatencySketch

LEAST_SHARE = 0.05  # share of the time that is worth a word


def task_line(name: str, totals: FunctionMetrics) -> str:
    """What a function did in a task, in plain characters whatever its name is.

    >>> task_line("weather", FunctionMetrics(rows=3, calls=3, attempts=4, seconds=1.5))
    'weather: 3 rows in 1.5 s (2/s), 3 calls, 1 retry'
    """
    words = [f"{one_line(name)}: {things(totals.rows, 'row')} in {seconds(totals.seconds)}"]
    if totals.rows and totals.seconds:
        words[0] += f" ({rate(totals.rows / totals.seconds)})"
    if totals.calls:
        words.append(things(totals.calls, "call"))
    if totals.latency.count:
        half, most = totals.latency.quantile(0.5), totals.latency.quantile(0.95)
        words[-1] += f" (p50 {seconds(half)}, p95 {seconds(most)})"
        words.append(f"{number(totals.in_flight)} in flight on average")
    if errors := sum(totals.errors.values()):
        which = "" if totals.last_error is None else f" ({which_errors(totals.errors, totals.last_error)})"
        words.append(f"{things(errors, 'error')}{which}")
    words += [things(value, *one.noun) for one in FIGURES if one.in_log and (value := getattr(totals, one.name))]
    words += [
        f"{share(spent / totals.seconds)} {state.value}"
        for state, spent in sorted(totals.time.items(), key=lambda item: -item[1])
        if spent > LEAST_SHARE * totals.seconds
    ]
    return ", ".join(words)


COUNTERS = [figure for figure in FIGURES if figure.export]
LOOKUPS = [figure for figure in FIGURES if figure.outcome]
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)  # seconds
RECORDS = 1_000  # latencies in a second of a task, at most
AT_ONCE = 100  # and at its start


class Exporter:
    """Passes the figures of one function in one task to OpenTelemetry, if the process has set up an SDK.

    Else it does nothing, and imports nothing. What goes wrong in it ends it, and never reaches the task.
    """

    # Counters get what came since the last time. So they are right however many tasks, one after another or at once,
    # use a Python worker, and an SDK that is set up while a task runs gets all of it.
    #
    # A histogram takes 4 us for each latency, and cannot take a number of them at once; a call of ours may cost 0.3 us.
    # So up to `RECORDS` in a second are recorded: all of most services, in less than 1% of the time. Of more it is a
    # sample, with its share of each bucket of the sketch. The counters are exact.

    def __init__(self, function: str, entry_point: str) -> None:
        self._attributes = {"code.function.name": function, "asyncudf.entry_point": entry_point}
        self._instruments: dict[str, Any] | None = None
        self._before = FunctionMetrics().to_plain()
        self._now = {"call.active": 0, "row.queued": 0}
        self._records = float(AT_ONCE)
        self._rest = 0.5  # of a latency, left over by the sample
        self._failed = False

    def export(self, totals: FunctionMetrics, in_flight: int, queued: int) -> None:
        """Add what came since the last time: best about once a second.

        At the end of the task no calls are in flight, and no rows are queued.
        """
        metrics = sys.modules.get("opentelemetry.metrics")
        if metrics is None or self._failed:
            return
        try:
            if self._instruments is None:
                self._instruments = _instruments(metrics)
            if self._instruments is not None:
                self._export(self._instruments, totals, {"call.active": in_flight, "row.queued": queued})
        except Exception:
            self._failed = True
            logging.getLogger("asyncudf").warning("metrics cannot be handed to OpenTelemetry", exc_info=True)

    def _export(self, instruments: Mapping[str, Any], totals: FunctionMetrics, now: dict[str, int]) -> None:
        plain = totals.to_plain()
        before, self._before = self._before, plain
        for figure in (*COUNTERS, *LOOKUPS):
            more = {"asyncudf.store.outcome": figure.outcome} if figure.outcome else None
            instrument = instruments["lookups" if more else figure.name]
            self._add(instrument, plain[figure.name] - before[figure.name], more)
        for kind, count in plain["errors"].items():
            error = "_OTHER" if kind == OTHERS else kind
            self._add(instruments["errors"], count - before["errors"].get(kind, 0), {"error.type": error})
        for unit, cost in plain["spent"].items():
            self._add(instruments["spent"], cost - before["spent"].get(unit, 0.0), {"asyncudf.unit": unit})
        for state, lasted in plain["time"].items():
            self._add(instruments["time"], lasted - before["time"][state], {"asyncudf.state": state})
        for name, count in now.items():
            self._add(instruments[name], count - self._now[name])
        self._now = now
        self._records = min(RECORDS, self._records + RECORDS * (plain["seconds"] - before["seconds"]))
        for latency in self._sample(plain["latency"], before["latency"]):
            instruments["duration"].record(latency, self._attributes)

    def _add(self, instrument: Any, number: float, more: Mapping[str, str] | None = None) -> None:
        if number:
            instrument.add(number, {**self._attributes, **more} if more else self._attributes)

    def _sample(self, plain: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[float]:
        """Latencies that were noted since: all, or of each length its share."""
        new = {bucket: count - before["buckets"].get(bucket, 0) for bucket, count in plain["buckets"].items()}
        sketch = LatencySketch.from_plain({**plain, "buckets": {one: count for one, count in new.items() if count}})
        share = min(1.0, int(self._records) / sketch.count) if sketch.count else 0.0
        self._records -= sketch.count * share
        for latency, count in sketch.histogram():
            whole, self._rest = (count, self._rest) if share == 1 else divmod(self._rest + count * share, 1)
            yield from [latency] * int(whole)


def _instruments(metrics: ModuleType) -> dict[str, Any] | None:
    """What is counted with; None if no SDK is set up: then the provider is one of the API's own, which do nothing."""
    provider = metrics.get_meter_provider()
    if type(provider).__module__.startswith(metrics.__name__):
        return None
    meter = provider.get_meter("asyncudf")  # an SDK gives the same for the same name, and the same instruments
    # Names and units as the semantic conventions want: a plural for what is counted, braces around what is no unit.
    instruments = {
        figure.name: meter.create_counter(f"asyncudf.{figure.export}", f"{{{figure.unit}}}", figure.text)
        for figure in COUNTERS
    }
    return instruments | {
        "lookups": meter.create_counter("asyncudf.store.lookups", "{lookup}", "Rows that a store was asked for."),
        "errors": meter.create_counter("asyncudf.errors", "{error}", "Attempts that ended with an error."),
        "spent": meter.create_counter("asyncudf.spent", "{unit}", "What calls did cost, by unit."),
        "time": meter.create_counter("asyncudf.time", "s", "What the time of the tasks went to."),
        "call.active": meter.create_up_down_counter("asyncudf.call.active", "{call}", "Calls in progress."),
        "row.queued": meter.create_up_down_counter("asyncudf.row.queued", "{row}", "Rows that wait for their turn."),
        "duration": meter.create_histogram(
            "asyncudf.call.duration", "s", "From the first attempt of a call to its result; with many calls a sample.",
            explicit_bucket_boundaries_advisory=BOUNDS,
        ),
    }  # fmt: skip
