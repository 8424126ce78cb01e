"""Sinks: write the rows of a DataFrame, or of a stream, to a service."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from asyncudf.queues._public import public

from ..._chain.function_plan import no_micro_batch
from ..._errors.checks import text
from ..._errors.exceptions import BudgetSpentError, FunctionError, OptionError
from ..._functions.async_function import AsyncFunction
from ..._functions.options import CallOptions, OnError, OnSpent, Options, OutputMode, shows_options
from ..._limits.health.option import ErrorBudget, Failures
from ..._observe.reports.sink_report import SinkError, SinkReport
from ..schemas import check_frame
from ..sinks import (
    check_micro_batches,
    micro_batch_named,
    plan_sink,
    run_sink,
    sink_class,
    stream_of,
    warn_of_lost_sorts,
)
from ..types import active_session
from .decorator import AsyncUDF, udf_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.datasource import DataSource

DEFAULT_MAX_FAILURES = ErrorBudget(0.5)


@public("asyncudf")
@shows_options(CallOptions, on_error="dead_letter", max_failures=DEFAULT_MAX_FAILURES.most)
def async_sink(
    df: DataFrame, function: Callable[..., Any] | AsyncFunction, *columns: str | Column, **options: Unpack[CallOptions]
) -> SinkReport:
    """Write each row of a DataFrame to a service: an action, which runs one job and reports.

    The function is any kind that `async_pandas_udf` takes. What it returns is dropped: a row has failed if the function
    raises an exception. A vectorized function, which writes many rows in a call, returns a list with an exception for
    each row that has failed, or anything else if all are written.

    Rows that fail are the report's `dead_letters`. If more than half of the rows fail, the job ends: as soon as a task
    has 100 rows of which this is true, else at its end with a `SinkError`. So it does if all rows fail, however few.
    `max_failures=` replaces both; with None there is a report in any case.

    With a `store=`, a row that was acknowledged once is not sent again by a run after a crash, nor are equal rows. The
    page docs/sinks.md says what is sent twice.

    Args:
        df: a DataFrame, no stream. If it has the dead letters of another sink, their `error` is left out.
        function: a function, an `AsyncFunction` or an `async_pandas_udf`, whose own `on_error` and `output_mode` do not
            count.
        columns: as in `ordered_wait`: those that the function reads, else those called like its parameters.
        options: as in `async_pandas_udf`. `on_error` is "dead_letter" (the default here), or "raise".

    Raises:
        FunctionError: a stream, unknown columns, or a function that cannot take these columns.
        OptionError: an option that cannot work.
        SinkError: too many rows have failed; it has the `report`.
        PySparkException: the job has failed.

    >>> report = async_sink(orders, post, "id", "total", rate_limit=RateLimit(100))  # doctest: +SKIP
    >>> report.dead_letters.write.mode("append").saveAsTable("orders_not_posted")  # doctest: +SKIP
    """
    check_frame(df, "async_sink")
    udf = _sink_of(function, _with_policies(options), OnError.DEAD_LETTER)
    if df.isStreaming:
        check_micro_batches(udf.__name__, df.sparkSession)
        raise FunctionError(
            "async_sink runs a job over a DataFrame, and this one is a stream: use "
            f"df.writeStream.foreachBatch(stream_sink({udf.__name__}, ...))"
        )
    report = _written(udf, df, columns)
    failures = _failures(report)
    if udf.options.max_failures is DEFAULT_MAX_FAILURES and 0 < failures.rows == failures.failed:
        raise _too_many(report)
    _check_failures(udf, report)
    return report


@public("asyncudf")
@shows_options(CallOptions)
def stream_sink(
    function: Callable[..., Any] | AsyncFunction,
    *columns: str | Column,
    dead_letters: Callable[[DataFrame, int], Any] | str | None = None,
    name: str | None = None,
    **options: Unpack[CallOptions],
) -> Callable[[DataFrame, int], Any]:
    """Write each row of a stream to a service: a function for `writeStream.foreachBatch`, which returns a `SinkReport`.

    A row's `idempotency_key`, and its key in a `store=`, contain the stream and the number of the micro-batch. So a
    micro-batch that Spark runs again has the keys that it had, and with a store sends nothing again that was
    acknowledged, while an equal row of another micro-batch is sent.

    Args:
        function, columns, options: as in `async_sink`. Without `dead_letters` a row that fails ends the query. With
            them `max_failures` says when it ends: by default when more than half of at least 100 rows of a task or of
            a micro-batch fail.
        dead_letters: where rows go that failed: a function of their DataFrame and the number of the micro-batch, or the
            name of a table to which they are appended. It is called if there are any. A micro-batch that runs again
            may give them again.
        name: the name of the stream in keys; unless given, Spark's id of the query, which its checkpoint keeps. Spark
            Connect does not tell the id: there a store needs a name.

    Raises:
        OptionError: an option that cannot work.
        FunctionError: a function that cannot be run; the session's engine has no foreachBatch, as Sail. Unknown
            columns are an error of the first micro-batch.

    >>> write = stream_sink(post, "id", "total", dead_letters="orders_not_posted")  # doctest: +SKIP
    >>> orders.writeStream.foreachBatch(write).option("checkpointLocation", path).start()  # doctest: +SKIP
    """
    if dead_letters is not None and not callable(dead_letters):
        text(dead_letters, "dead_letters")
    if name is not None:
        text(name, "name")
    given_options = _with_policies(options)
    udf = _sink_of(function, given_options, _policy(function, given_options, dead_letters, "stream_sink"))
    check_micro_batches(udf.__name__, active_session())
    return _StreamSink(udf, columns, dead_letters, name)


@public("asyncudf")
@shows_options(CallOptions)
def sink_source(
    name: str,
    function: Callable[..., Any] | AsyncFunction,
    *,
    columns: str | Sequence[str] = (),
    dead_letters: str | None = None,
    **options: Unpack[CallOptions],
) -> type[DataSource]:
    """A data source that writes each row to a service, for `spark.dataSource.register`.

    Then `df.write.format(name).mode("append").save()` writes a DataFrame, and
    `df.writeStream.format(name).option("checkpointLocation", path).start()` a stream, whose micro-batches are in keys
    as with `stream_sink`. From Spark 4.0 on, for streams from 4.1 on.

    Spark gives no report of such a write: the logger `asyncudf` of the driver has a line for each. Rows that were
    written stay written, also if the write fails.

    Args:
        name: the name of the format.
        function, options: as in `stream_sink`: without `dead_letters` a row that fails ends the write.
        columns: the names of those that the function reads; unless given, those called like its parameters.
        dead_letters: a folder to which each write, or micro-batch, adds a Parquet file of its failed rows: a path that
            the driver can write to, or a URI that pyarrow knows, such as "s3://bucket/folder".

    Raises:
        OptionError: an option that cannot work.
        FunctionError: this Spark has no data sources in Python, or a function that cannot be run.

    >>> spark.dataSource.register(sink_source("crm", post, capacity=20))  # doctest: +SKIP
    >>> orders.write.format("crm").mode("append").save()  # doctest: +SKIP
    """
    text(name, "name")
    given = (columns,) if isinstance(columns, str) else tuple(text(column, "a column") for column in columns)
    if dead_letters is not None and "://" not in text(dead_letters, "dead_letters"):
        dead_letters = os.path.abspath(os.path.expanduser(dead_letters))
    given_options = _with_policies(options)
    udf = _sink_of(function, given_options, _policy(function, given_options, dead_letters, "sink_source"))
    udf.spec.check_takes_columns()
    warn_of_lost_sorts(name, active_session())
    return sink_class(name, plan_sink(udf.spec, udf.options), given, dead_letters)


@dataclasses.dataclass(frozen=True)
class _StreamSink:
    """Travels to the server with Spark Connect, so it is plain data."""

    udf: AsyncUDF[..., Any]
    columns: Sequence[Any]
    dead_letters: Callable[[Any, int], Any] | str | None
    name: str | None

    def __call__(self, df: DataFrame, batch_id: int) -> SinkReport:
        stream = self.name or stream_of(df)
        if stream is None and (self.udf.options.store is not None or self.udf.spec.has_context):
            raise OptionError(
                f"stream_sink({self.udf.__name__}, ...) needs name=, a name of the stream that is the same after a "
                "restart: keys contain it, and neither Spark Connect nor a call outside a query tells which query it is"
            )
        report = _written(self.udf, df, self.columns, partial(micro_batch_named, stream or "", batch_id))
        take: Any = self.dead_letters
        if report.failed and isinstance(take, str):
            report.dead_letters.write.mode("append").saveAsTable(take)
        elif report.failed and take is not None:
            take(report.dead_letters, batch_id)
        _check_failures(self.udf, report)
        return report


def _with_policies(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options; those that say what becomes of a row that fails are checked, and so have one form."""
    policies = {name: options[name] for name in ("on_error", "on_spent") if name in options}
    return {**options, **Options.checked(policies)}


def _sink_of(function: Any, options: Mapping[str, Any], on_error: OnError) -> AsyncUDF[..., Any]:
    if "output_mode" in options:
        raise OptionError("a sink has no output_mode: it gives no rows, and calls end in any order")
    if "returnType" in options:
        raise OptionError("a sink drops what its function returns; leave returnType out")
    given = {"on_error": on_error, **options}
    if given["on_error"] is OnError.RAISE:
        given.setdefault("max_failures", None)
    elif not isinstance(function, AsyncUDF) or function.options.max_failures is None:
        given.setdefault("max_failures", DEFAULT_MAX_FAILURES)
    udf = udf_of(function, None, {**given, "output_mode": OutputMode.UNORDERED})
    if udf.options.on_error in (OnError.NULL, OnError.CAPTURE):
        raise OptionError(
            f"on_error={udf.options.on_error.value!r} makes a result of an error, and a sink has no results; give "
            "'dead_letter' or 'raise'"
        )
    if udf.options.on_spent is OnSpent.NULL:
        raise OptionError("on_spent='null' makes a result where no budget is left; give 'dead_letter' or 'raise'")
    if udf.options.on_timeout is not None:
        raise OptionError(
            "on_timeout gives a late row a result, and a row of a sink with a result counts as written; leave it out"
        )
    return udf


def _policy(function: Any, options: Mapping[str, Any], dead_letters: Any, entry_point: str) -> OnError:
    """What a row that fails does, at entry points that return no report."""
    spent = options.get("on_spent", function.options.on_spent if isinstance(function, AsyncUDF) else None)
    if dead_letters is not None:
        if options.get("on_error") is OnError.RAISE and spent is not OnSpent.DEAD_LETTER:
            raise OptionError("dead_letters= is never used with on_error='raise'; leave one of them out")
        return OnError.DEAD_LETTER
    if options.get("on_error") is OnError.DEAD_LETTER or spent is OnSpent.DEAD_LETTER:
        raise OptionError(f"{entry_point} needs dead_letters=, or nobody would see the rows that fail")
    if options.get("max_failures") is not None:
        raise OptionError(
            f"max_failures is never used where the first failed row ends the write; give {entry_point} dead_letters="
        )
    return OnError.RAISE


def _written(
    udf: AsyncUDF[..., Any], df: DataFrame, columns: Sequence[Any], micro_batch: Callable[[], str] = no_micro_batch
) -> SinkReport:
    began = time.monotonic()
    figures, letters = run_sink(plan_sink(udf.spec, udf.options, micro_batch, df.sparkSession), df, columns)
    return SinkReport(
        function=udf.__name__,
        **figures.rows._asdict(),
        calls=figures.metrics.calls,
        attempts=figures.metrics.attempts,
        retried=figures.metrics.retried_rows,
        reasons=dict(figures.reasons.most_common()),
        examples=figures.examples,
        seconds=time.monotonic() - began,
        dead_letters=letters,
    )


def _failures(report: SinkReport) -> Failures:
    """The rows that were sent by all tasks, and those that failed, other than for a spent budget, as asked for."""
    spent = report.reasons.get(BudgetSpentError.__name__, 0)
    return Failures(report.rows - report.skipped - spent, report.failed - spent)


def _check_failures(udf: AsyncUDF[..., Any], report: SinkReport) -> None:
    """Raise a SinkError if more rows have failed, over all tasks, than `max_failures` allows: a task counts its own."""
    budget = udf.options.max_failures
    if budget is not None and budget.is_spent(_failures(report)):
        raise _too_many(report)


def _too_many(report: SinkReport) -> SinkError:
    ways_out = "The rows are error.report.dead_letters. With max_failures=None there is a report and no error"
    return SinkError(f"{report._failures()}\n{ways_out}", report)
