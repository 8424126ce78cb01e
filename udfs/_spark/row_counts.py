"""Counts the rows that reach a place of a plan, and their distinct arguments, without calling any async function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from .._policies.planned_calls import RESAMPLED, PlanNode
from .planned_functions import PlannedFunction
from .query_plan import items, option, read_plan

__all__ = ("Counting", "RowCounter")


Counting = Literal["exact", "approximate", "estimate"]


@dataclasses.dataclass(frozen=True)
class _Partitions:
    """The rows of those partitions that have any."""

    rows: int
    number: int
    largest: int


class RowCounter:
    """Counts rows for one dry run.

    "exact" and "approximate" run what is below a place, with all that it has of other functions; "estimate" runs
    nothing, and asks Spark's statistics.
    """

    # Never the plan of the query itself, which would keep shuffles and caches for its next action, but a query of its
    # own over what is below. It is planned first, and is not run if that plan could call a function of ours.

    def __init__(self, session: SparkSession, counting: Counting) -> None:
        self._session: Any = session
        self._counting = counting
        self._cores = int(session.sparkContext.defaultParallelism)
        self._counted: dict[PlanNode, _Partitions | None] = {}

    def rows(self, node: PlanNode) -> int | None:
        """The rows of a node, or of what a node with calls reads; None if nobody knows."""
        logical = _logical(node)
        if logical is None:
            return None
        if self._counting == "estimate":
            return _estimate(logical)
        counted = self._partitions(node)
        return None if counted is None else counted.rows

    def is_even(self, node: PlanNode) -> bool:
        """Whether no partition has more rows than Spark's sample of it is good for."""
        counted = self._counted.get(node)
        return counted is not None and counted.largest * counted.number <= RESAMPLED * counted.rows

    def tasks(self, node: PlanNode) -> int:
        """How many tasks that read a node's rows, or those of a node with calls, run at a time."""
        counted = self._counted.get(node)
        partitions = node.partitions if counted is None else counted.number
        return max(1, min(partitions or self._cores, self._cores))

    def distinct(self, node: PlanNode, function: PlannedFunction) -> int | None:
        """How many different arguments a function gets; None if they cannot be compared, or are not known."""
        frame = self._frame(_logical(node))
        if self._counting == "estimate" or frame is None or function.arguments is None:
            return None
        try:
            values = frame.select(sf.struct(*self._arguments(node, function)).alias("arguments"))
            if self._counting == "approximate":
                (row,) = values.agg(sf.approx_count_distinct("arguments")).collect()
                return int(row[0])
            return values.distinct().count()
        except AnalysisException:  # maps have no order
            return None

    def _partitions(self, node: PlanNode) -> _Partitions | None:
        if node not in self._counted:
            frame = self._frame(_logical(node))
            if frame is None:
                self._counted[node] = None
            else:
                parts = frame.select(sf.spark_partition_id().alias("part")).groupBy("part").count().collect()
                sizes = [row["count"] for row in parts]
                self._counted[node] = _Partitions(sum(sizes), len(sizes), max(sizes, default=0))
        return self._counted[node]

    def _frame(self, logical: Any) -> DataFrame | None:
        """The rows of an optimized plan; None if running it might call a function."""
        if logical is None:
            return None
        made = self._session._jvm.org.apache.spark.sql.classic.Dataset.ofRows
        try:
            frame = DataFrame(made(self._session._jsparkSession, logical), self._session)
            return None if read_plan(frame).may_call else frame
        except Exception:  # Spark's own, of many types: part of an optimized plan need not be one that stands alone
            return None

    def _arguments(self, node: PlanNode, function: PlannedFunction) -> list[Column]:
        java = node.handle
        if function.entry_point == "column":
            given = next(udf for udf in items(java.udfs()) if udf.resultId().id() == function.use)
        else:
            given = java.func() if function.entry_point == "operator" else java.udtf()
        columns = [self._column(expression) for expression in items(given.children())]
        if function.entry_point == "table function":  # the whole row comes as one struct
            return _named([columns[0].getField(name) for name in function.arguments or ()])
        return _named([columns[int(at)] for at in function.arguments or ()])

    def _column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column as ClassicColumn

        return ClassicColumn(self._session._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _named(columns: Sequence[Column]) -> list[Column]:
    return [column.alias(f"a{number}") for number, column in enumerate(columns)]


def _logical(node: PlanNode) -> Any:
    """The optimized plan of a node's rows, or of those that its functions read."""
    if node.handle is None:
        return None
    found = option(node.handle.logicalLink())
    if found is not None:
        return found.children().apply(0) if node.calls else found
    return _logical(node.children[0]) if len(node.children) == 1 else None


def _estimate(logical: Any) -> int | None:
    """Spark's estimate; from the size, as it makes it itself, where it has no number of rows."""
    statistics = logical.stats()
    rows = option(statistics.rowCount())
    if rows is not None:
        return int(str(rows))
    size = int(str(statistics.sizeInBytes()))
    if size >= 2**62:  # stands for "not known"
        return None
    width = 8 + sum(int(attribute.dataType().defaultSize()) for attribute in items(logical.output()))
    return math.ceil(size / width)
