"""The figures of a run as a DataFrame: its columns, and a row for each function and task."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ..._observe.function_metrics import PEAKS, TOTALS, Figure
from ..._observe.time_account import State


def _columns(figures: Iterable[Figure]) -> Iterator[str]:
    return (f"{one.name} {'double' if one.unit == 's' else 'bigint'}" for one in figures if one.in_frame)


def _values(figures: Iterable[Figure], task: Mapping[str, Any]) -> Iterator[float]:
    return (float(task[one.name]) if one.unit == "s" else task[one.name] for one in figures if one.in_frame)


QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
SCHEMA = ", ".join(
    [
        "function string, entry_point string, stage int, partition int, attempt int, batch bigint, status string",
        "host string, began timestamp",
        *_columns(TOTALS),
        "in_flight_mean double, in_flight_peak bigint, queued_mean double, queued_peak bigint",
        *_columns(PEAKS),
        *(f"latency_{name} double" for name in QUANTILES),
        *(f"{state.name.lower()}_seconds double" for state in State),
        "errors map<string, bigint>",
    ]
)


def run_frame(spark: SparkSession, metrics: Mapping[str, Any]) -> DataFrame:
    rows = [_row(function, task) for function in metrics["functions"] for task in function["per_task"]]
    return spark.createDataFrame(rows, SCHEMA)


def _row(function: Mapping[str, Any], task: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        function["function"],
        function["entry_point"],
        *(task[name] for name in ("stage", "partition", "attempt", "batch", "status", "host")),
        datetime.datetime.fromtimestamp(task["began"], datetime.UTC),
        *_values(TOTALS, task),
        float(task["in_flight"]["mean"]),
        task["in_flight"]["peak"],
        float(task["queued"]["mean"]),
        task["queued"]["peak"],
        *_values(PEAKS, task),
        *(task["latency"][name] for name in QUANTILES),
        *(float(task["time"][state.name.lower()]) for state in State),
        task["errors"],
    )
