"""The figures of a run as a DataFrame."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from .._metrics.run_metrics import COUNTS
from .._metrics.time_account import State

__all__ = ("run_frame",)


QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
SCHEMA = ", ".join(
    [
        "function string, entry_point string, stage int, partition int, attempt int, batch bigint, status string",
        "host string, began timestamp, seconds double",
        *(f"{name} bigint" for name in COUNTS),
        "in_flight_mean double, in_flight_peak bigint, queued_mean double, queued_peak bigint, bytes_peak bigint",
        *(f"latency_{name} double" for name in QUANTILES),
        *(f"{state.name.lower()}_seconds double" for state in State),
        "errors map<string, bigint>",
    ]
)


def run_frame(spark: SparkSession, metrics: Mapping[str, Any]) -> DataFrame:
    """A row for each function and task."""
    rows = [_row(function, task) for function in metrics["functions"] for task in function["per_task"]]
    return spark.createDataFrame(rows, SCHEMA)


def _row(function: Mapping[str, Any], task: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        function["function"],
        function["entry_point"],
        *(task[name] for name in ("stage", "partition", "attempt", "batch", "status", "host")),
        datetime.datetime.fromtimestamp(task["began"], datetime.UTC),
        float(task["seconds"]),
        *(task[name] for name in COUNTS),
        float(task["in_flight"]["mean"]),
        task["in_flight"]["peak"],
        float(task["queued"]["mean"]),
        task["queued"]["peak"],
        task["bytes_peak"],
        *(task["latency"][name] for name in QUANTILES),
        *(float(task["time"][state.name.lower()]) for state in State),
        task["errors"],
    )
