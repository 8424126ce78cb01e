"""The physical plan of a DataFrame, read from Spark's driver as plain nodes; nothing is run."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from .._errors.exceptions import OptionError
from .._policies.planned_calls import Flow, PlanNode
from .planned_functions import PlannedFunction, functions_of, gives, may_be_ours

__all__ = ("items", "option", "read_plan")


# Nodes of Spark's that keep the number of rows, and those that do not make more of them. All others may.
SAME = {
    "AQEShuffleReadExec", "ArrowEvalPythonExec", "BatchEvalPythonExec", "BroadcastExchangeExec", "CoalesceExec",
    "CollectMetricsExec", "ColumnarToRowExec", "DeserializeToObjectExec", "ProjectExec", "RowToColumnarExec",
    "SerializeFromObjectExec", "ShuffleExchangeExec", "SortExec", "SubqueryAdaptiveBroadcastExec",
    "SubqueryBroadcastExec", "SubqueryExec", "WindowExec",
}  # fmt: skip
FEWER = {
    "CollectLimitExec", "FilterExec", "GlobalLimitExec", "LocalLimitExec", "SampleExec", "TakeOrderedAndProjectExec",
    "WindowGroupLimitExec",
}  # fmt: skip
LIMITS = {"CollectLimitExec", "GlobalLimitExec", "LocalLimitExec"}
SHELLS = {"WholeStageCodegenExec", "InputAdapter"}
BROADCAST = b"pyspark.core.broadcast"  # a command above 1 MiB is a broadcast variable, and this what stands for it
PYTHON_SCOPES = ("ArrowEvalPython", "MapInArrow", "BatchEvalPythonUDTF")


def read_plan(df: DataFrame) -> PlanNode:
    """The plan that a DataFrame's next action follows.

    Raises:
        OptionError: the DataFrame is a streaming one, or one of Spark Connect.
    """
    java = getattr(df, "_jdf", None)
    if java is None:
        raise OptionError(
            "dry_run reads the plan from Spark's driver, which Spark Connect keeps to itself. Run it in a classic "
            "session (SparkSession.builder.master('local[2]')) over a sample of the data; or count in df.explain() "
            "the nodes ArrowEvalPython, MapInArrow and BatchEvalPythonUDTF: each calls its function for each row"
        )
    if df.isStreaming:
        raise OptionError(
            "dry_run takes a DataFrame that ends, not a streaming one: use writeStream.foreachBatch(f) and, in f, "
            "print(dry_run(query_of(batch))) for a micro-batch"
        )
    reuses_exchanges = df.sparkSession.conf.get("spark.sql.exchange.reuse", "true") == "true"
    return _Reader(df.sparkSession._jvm, reuses_exchanges).read(java.queryExecution().executedPlan())


class _Reader:
    # _keys: for exchanges and caches that are one and the same; Spark finds equal ones when the query runs, if not
    # before, and evaluates them once

    def __init__(self, jvm: Any, reuses_exchanges: bool) -> None:
        self._jvm = jvm
        self._keys: list[Any] = []
        self._reuses_exchanges = reuses_exchanges
        self._is_adaptive = False

    def read(self, java: Any) -> PlanNode:
        """A node of Spark's with all that is below it."""
        kind = java.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            self._is_adaptive = True
            return self.read(java.initialPlan())
        if kind in SHELLS:
            return self.read(java.children().apply(0))
        subqueries = tuple(self._subquery(plan) for plan in items(java.subqueries()))
        if kind == "InMemoryTableScanExec":
            return self._cache(java, subqueries)
        if kind == "ReusedExchangeExec":
            return self.read(java.child())
        children = tuple(self.read(child) for child in items(java.children()))
        partitions = _partitions(java)
        if kind == "MapInArrowExec":
            return self._map_in_arrow(java, children, subqueries, partitions)
        calls, is_hidden = self._calls(java, kind)
        is_narrow = kind == "UnionExec" or len(children) == 1
        is_exchange = kind in ("ShuffleExchangeExec", "BroadcastExchangeExec")
        return PlanNode(
            flow=_flow(kind),
            children=children,
            calls=tuple(calls),
            subqueries=subqueries,
            limit=java.limit() if kind in LIMITS and java.limit() >= 0 else None,  # -1: there is an OFFSET only
            exchange=self._key(java) if is_exchange else None,
            samples=kind == "ShuffleExchangeExec" and _class(java.outputPartitioning()) == "RangePartitioning",
            crosses=kind == "CartesianProductExec",
            may_drop=self._is_adaptive and len(children) > 1 and _flow(kind) is Flow.UNKNOWN,
            is_hidden=is_hidden or (not children and _hides_calls(java)),
            partitions=partitions or (sum(child.partitions for child in children) if is_narrow else 0),
            handle=java,
        )

    def _calls(self, java: Any, kind: str) -> tuple[list[PlannedFunction], bool]:
        """The functions that a node calls, and whether there may be others that cannot be read."""
        if kind == "ArrowEvalPythonExec":
            expressions, analyzed = list(items(java.udfs())), None
        elif kind == "BatchEvalPythonUDTFExec":
            expressions, analyzed = [java.udtf()], option(java.udtf().pickledAnalyzeResult())
        else:
            return [], False
        found: list[PlannedFunction] = []
        is_hidden = False
        for expression in expressions:
            command = self._command(expression.func())
            is_hidden |= command is None
            width, use = expression.children().size(), expression.resultId().id()
            name = expression.name()
            functions = functions_of(name, command or b"", width=width, use=use, analyzed=analyzed)
            found += [_with_arguments(function, list(items(expression.children()))) for function in functions]
        return found, is_hidden

    def _map_in_arrow(
        self, java: Any, children: tuple[PlanNode, ...], subqueries: tuple[PlanNode, ...], partitions: int
    ) -> PlanNode:
        expression = java.func()
        command = self._command(expression.func())
        functions = functions_of(expression.name(), command or b"", width=0, use=expression.resultId().id())
        calls = [_with_arguments(function, list(items(expression.children()))) for function in functions]
        return PlanNode(
            flow=gives(command) if command and may_be_ours(command) else Flow.UNKNOWN,
            children=children,
            calls=tuple(calls),
            subqueries=subqueries,
            is_hidden=command is None,
            partitions=partitions or children[0].partitions,
            handle=java,
        )

    def _cache(self, java: Any, subqueries: tuple[PlanNode, ...]) -> PlanNode:
        builder = java.relation().cacheBuilder()
        is_loaded = builder.isCachedColumnBuffersLoaded()
        below = self.read(builder.cachedPlan())
        rows = option(java.relation().computeStats().rowCount()) if is_loaded else None
        return PlanNode(
            flow=Flow.SAME,
            children=(below,),
            subqueries=subqueries,
            exchange=self._key(builder.cachedPlan(), is_cache=True),
            is_cache=True,
            known_rows=None if rows is None else int(str(rows)),
            partitions=_partitions(java) or below.partitions,
            handle=java,
        )

    def _command(self, function: Any) -> bytes | None:
        """What Spark sends to the executors of a function; None if it cannot be read."""
        command = bytes(function.command().toArray(self._jvm.scala.reflect.ClassTag.Byte()))
        return _broadcast_command(function) if BROADCAST in command and len(command) < 1000 else command

    def _subquery(self, java: Any) -> PlanNode:
        if _class(java) == "ReusedSubqueryExec":
            java = java.child()
        below = self.read(java)
        return PlanNode(Flow.SAME, (below,), exchange=self._key(java), handle=java)

    def _key(self, java: Any, *, is_cache: bool = False) -> int:
        """The same number for plans of which Spark evaluates one only."""
        for number, other in enumerate(self._keys):
            if java.equals(other) or ((is_cache or self._reuses_exchanges) and java.sameResult(other)):
                return number
        self._keys.append(java)
        return len(self._keys) - 1


def _with_arguments(function: PlannedFunction, given: list[Any]) -> PlannedFunction:
    """With the names of what it reads, which are no secrets as a literal may be; and what tells these from others."""
    if function.arguments is None:
        return function
    if function.entry_point == "table function":
        over: Any = (given[0].toString(), function.arguments)
        return dataclasses.replace(function, columns=tuple(map(str, function.arguments)), over=over)
    read = [given[int(at)] for at in function.arguments]
    names = tuple(one.name() if _class(one) == "AttributeReference" else "..." for one in read)
    return dataclasses.replace(function, columns=names, over=tuple(one.toString() for one in read))


def _flow(kind: str) -> Flow:
    if kind == "UnionExec":
        return Flow.SUM
    if kind in SAME:
        return Flow.SAME
    return Flow.FEWER if kind in FEWER or kind.endswith("AggregateExec") else Flow.UNKNOWN


def _partitions(java: Any) -> int:
    """How many partitions Spark says there are; 0 where it does not."""
    try:
        return int(java.outputPartitioning().numPartitions())
    except Exception:  # some scans would have to look at their files
        return 0


def _broadcast_command(function: Any) -> bytes | None:
    """A command of more than 1 MiB: Spark keeps it in a file of the driver."""
    with contextlib.suppress(Exception):
        for broadcast in function.broadcastVars():
            with open(broadcast.value().path(), "rb") as file:
                command = pickle.load(file)
            if isinstance(command, bytes):
                return command
    return None


def _hides_calls(java: Any) -> bool:
    """Whether rows of an RDD are made by a plan that calls Python functions: of `df.rdd`, or a lazy checkpoint."""
    if _class(java) not in ("RDDScanExec", "ExternalRDDScanExec"):
        return False
    seen, todo = set(), [java.rdd()]
    while todo:
        rdd = todo.pop()
        if rdd.id() in seen:
            continue
        seen.add(rdd.id())
        scope = option(rdd.scope())
        if scope is not None and scope.name() in PYTHON_SCOPES:
            return True
        todo += [dependency.rdd() for dependency in items(rdd.dependencies())]
    return False


def items(seq: Any) -> Iterator[Any]:
    """Those of a sequence of Scala's."""
    return (seq.apply(at) for at in range(seq.size()))


def option(value: Any) -> Any:
    """What is in an Option of Scala's; None if nothing is."""
    return value.get() if value.isDefined() else None


def _class(java: Any) -> str:
    return str(java.getClass().getSimpleName())
