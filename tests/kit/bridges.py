"""What Spark's worker starts of a function, without Spark: its bridge, or its column."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa

from asyncudf import async_pandas_udf
from asyncudf._arrow.rows import records_of
from asyncudf._engine.loop.bridge import Bridge
from asyncudf._limits.coordinator.names import CoordinatorConfig
from asyncudf._spark import worker
from asyncudf._spark.column import ColumnTask
from asyncudf._spark.monitoring.task_report import TaskReportSpec
from asyncudf._spark.planner import plan_function_offline
from asyncudf._spark.worker import start_function

__all__ = ("batch", "begin_to_close", "column", "start")


def batch(*values: Any) -> Any:
    """A batch of rows of one argument, as a bridge is fed with it."""
    return records_of([(value,) for value in values], [None] * len(values))


def results_alone(values: Any, *_: Any) -> list[Any]:
    """What is written: the results of a batch."""
    return list(values)


def start(
    function: Any,
    *,
    write: Callable[..., Any] = results_alone,
    flush: Callable[[], None] = lambda: None,
    coordinator: CoordinatorConfig | None = None,
    **options: Any,
) -> Bridge[Any, list[Any]]:
    """A bridge that writes batches of at most 100 results.

    Args:
        flush: writes them to Spark, and raises once Spark has closed its end.
        coordinator: where the tasks of the job agree on its limits.
        options: as in `async_pandas_udf`.
    """
    udf = async_pandas_udf(function, **options)
    plan, names = plan_function_offline(udf.spec, udf.options, None), udf.spec.parameters
    plan = dataclasses.replace(plan, coordinator=coordinator)
    with mock.patch.object(worker, "flusher", return_value=flush):
        return start_function(plan, write, names, [None] * len(names), 100, TaskReportSpec("column"))


def begin_to_close(bridge: Bridge[Any, Any]) -> None:
    """Cancel what runs, as `close` does, without waiting for the end."""
    bridge._send(bridge._stop)


def column(
    function: Any,
    batches: Iterable[pa.Array],
    returnType: str,  # noqa: N803
    in_parts: bool = True,
    **options: Any,
) -> Iterator[pa.Array]:
    """What Spark gets of a column, for the batches of its one argument; as one array if not `in_parts`."""
    udf = async_pandas_udf(function, returnType, **options)
    plan = plan_function_offline(udf.spec, udf.options, udf.returns)
    return ColumnTask(plan, in_parts=in_parts)(iter(batches))
