"""The physical plan of a DataFrame: where it calls async functions, with how many rows, and how often it is read."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pickle
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ..._errors.exceptions import OptionError
from ..._observe.planned_calls import Bounds, Reason, RowCosts
from .._compat import column_of, frame_of
from .functions import ALL, ANY, HIDDEN, OURS, SOME, PlannedFunction, costs_of, functions_of

Counting = Literal["exact", "approximate", "estimate"]

# The nodes that read their children once and to the end. SAME give a row for each row, FEWER at most one, OTHERS any
# number. Below a node that is in none of these tables there is no upper bound.
SAME = """AQEShuffleRead ArrowEvalPython BatchEvalPython BroadcastExchange Coalesce CollectMetrics ColumnarToRow
    DeserializeToObject InMemoryTableScan Project RowToColumnar SerializeFromObject ShuffleExchange Sort
    SubqueryAdaptiveBroadcast SubqueryBroadcast Subquery Window"""
FEWER = "Filter HashAggregate ObjectHashAggregate Sample SortAggregate WindowGroupLimit"
OTHERS = """AggregateInPandas ArrowAggregatePython ArrowWindowPython BatchEvalPythonUDTF Expand FlatMapCoGroupsInArrow
    FlatMapCoGroupsInPandas FlatMapGroupsInArrow FlatMapGroupsInPandas Generate Union WindowInPandas"""
ROWS = {f"{kind}Exec": rows for kinds, rows in ((SAME, ALL), (FEWER, SOME), (OTHERS, ANY)) for kind in kinds.split()}
LIMITS = {"CollectLimitExec", "GlobalLimitExec", "LocalLimitExec", "TakeOrderedAndProjectExec"}
MAY_STOP = {"MapElementsExec", "MapInArrowExec", "MapInPandasExec", "MapPartitionsExec"}  # if the user's function stops
EXCHANGES = {"BroadcastExchangeExec", "InMemoryTableScanExec", "ShuffleExchangeExec"}  # evaluated once for all readers
INNER_PLANS = {"CommandResultExec", "InMemoryTableScanExec"}  # leaves with a plan inside: one has run, one is read here
SHELLS = {"AdaptiveSparkPlanExec", "InputAdapter", "ReusedExchangeExec", "ReusedSubqueryExec", "WholeStageCodegenExec"}
READ_AGAIN = {"FullOuter BuildLeft", "FullOuter BuildRight", "LeftOuter BuildLeft", "RightOuter BuildRight"}
READ_WHOLE = {"BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec", "CartesianProductExec"}
# Types of joins that read all rows of their left side, or of their right side, even if the other side is empty.
KEEP = (("LeftOuter", "FullOuter", "LeftAnti", "LeftSingle", "ExistenceJoin"), ("RightOuter", "FullOuter"))
EVEN = 3  # of three partitions none is larger than three times the mean, which a sort would sample again
BROADCAST = b"_from_id"  # stands for a command above 1 MiB, which Spark sends as a broadcast variable
PYTHON_SCOPES = ("ArrowEvalPython", "MapInArrow", "PythonMapInArrow", "BatchEvalPythonUDTF")


@dataclasses.dataclass(frozen=True, eq=False)
class CallSite:
    """A node that calls a function.

    Args:
        columns: the names of the columns that the function reads; "..." for an expression.
        rows: how many rows the function gets in one evaluation of the node.
        evaluations: how often Spark evaluates the node.
        distinct: how many distinct arguments the function gets; None if unknown.
        tasks: how many tasks run at a time.
        use: equal for two copies that the optimizer has made of one mention.
        costs: what `cost` functions say of the rows; None without one, and if the plan was not asked for costs.
    """

    function: PlannedFunction
    columns: tuple[str, ...]
    rows: Bounds[int]
    evaluations: Bounds[int]
    distinct: int | None
    tasks: int
    reasons: tuple[Reason, ...]
    use: Any
    costs: RowCosts | None


@dataclasses.dataclass(frozen=True)
class _Reads:
    """How often the nodes above read a node, why, and whether Spark may drop the node after it has seen other rows."""

    times: Bounds[int] = ALL
    reasons: tuple[Reason, ...] = ()
    may_drop: bool = False

    def then(self, reason: Reason, times: Bounds[int]) -> _Reads:
        return dataclasses.replace(self, times=self.times * times, reasons=(*self.reasons, reason))

    def or_else(self, other: _Reads) -> _Reads:
        """The reads if Spark decides between two plans while the query runs."""
        if self.times == other.times:
            return self
        reasons: tuple[Reason, ...] = (*self.reasons, *other.reasons, "replanned")
        return _Reads(self.times | other.times, reasons, self.may_drop or other.may_drop)


class _Counted(NamedTuple):
    """What is known of the rows that a node reads.

    Attributes:
        rows: how many; None if unknown.
        distinct: how many distinct arguments each of its functions gets; None if unknown.
        frame: the rows; None if they cannot be read without a call.
        arguments: of each function as one column of the frame; None where they are not in it.
    """

    rows: int | None
    distinct: list[int | None]
    frame: DataFrame | None = None
    arguments: Sequence[Column | None] = ()


class _Nodes:
    """The nodes of physical plans: one object for each of Spark's, also where others read it again."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._known: dict[int, _Node] = {}  # by Spark's id, which is unique

    def of(self, java: Any) -> _Node:
        """The node inside the shells around it."""
        while (kind := _class(java)) in SHELLS:
            java = java.initialPlan() if kind == "AdaptiveSparkPlanExec" else java.child()
        number = java.id()
        if number not in self._known:
            self._known[number] = _Node(java, kind, self)
        return self._known[number]

    def command(self, function: Any) -> bytes | None:
        """The pickled function that Spark sends to the executors; None if it cannot be read."""
        command = bytes(function.command().toArray(self._session._jvm.scala.reflect.ClassTag.Byte()))
        if BROADCAST not in command or len(command) >= 1000:
            return command
        with contextlib.suppress(Exception):  # the driver has the broadcast variable in a file
            for broadcast in function.broadcastVars():
                with open(broadcast.value().path(), "rb") as file:
                    command = pickle.load(file)
                if isinstance(command, bytes):
                    return command
        return None


class _Node:
    """A node of a physical plan, without the shells around it."""

    def __init__(self, java: Any, kind: str, nodes: _Nodes) -> None:
        self.java = java
        self.kind = kind
        self._nodes = nodes

    @cached_property
    def children(self) -> list[_Node]:
        if self.kind == "InMemoryTableScanExec":
            return [self._nodes.of(self.cache.cachedPlan())]
        return [*map(self._nodes.of, _items(self.java.children()))]

    @cached_property
    def subqueries(self) -> list[_Node]:
        return [*map(self._nodes.of, _items(self.java.subqueries()))]

    @cached_property
    def has_exchange(self) -> bool:
        """Whether it is an exchange, or one is below it."""
        return self.kind in EXCHANGES or any(child.has_exchange for child in self.children)

    @cached_property
    def may_call(self) -> bool:
        """Whether it calls functions, or nodes below it do."""
        return bool(self.calls) or any(one.may_call for one in (*self.children, *self.subqueries))

    @cached_property
    def calls(self) -> list[tuple[PlannedFunction, Any]]:
        """The functions that it calls, with their expressions; HIDDEN if they cannot be read."""
        return list(self._read_calls())

    def _read_calls(self) -> Iterator[tuple[PlannedFunction, Any]]:
        java, analyzed = self.java, None
        if self.kind == "ArrowEvalPythonExec":
            expressions = [one for udf in _items(java.udfs()) for one in _chained(udf)]
        elif self.kind == "MapInArrowExec":
            expressions = [java.func()]
        elif self.kind == "BatchEvalPythonUDTFExec":
            expressions, analyzed = [java.udtf()], _option(java.udtf().pickledAnalyzeResult())
        else:
            if self.kind in ("RDDScanExec", "ExternalRDDScanExec") and _is_made_by_python(java.rdd()):
                yield HIDDEN, None
            inner = java.innerChildren().size() - java.subqueries().size()
            if inner and not self.children and self.kind not in INNER_PLANS:  # a recursive query, for example
                yield HIDDEN, None
            return
        for expression in expressions:
            command, width = self._nodes.command(expression.func()), expression.children().size()
            if command is None:
                yield HIDDEN, expression
            else:
                for function in functions_of(expression.name(), command, width=width, analyzed=analyzed):
                    yield function, expression

    @property
    def is_join(self) -> bool:
        return self.kind.endswith("JoinExec") or self.kind == "CartesianProductExec"

    @property
    def cache(self) -> Any:
        """Of an InMemoryTableScanExec: what it reads."""
        return self.java.relation().cacheBuilder()

    @property
    def is_loaded(self) -> bool:
        """Whether it reads a cache that is made already."""
        return self.kind == "InMemoryTableScanExec" and bool(self.cache.isCachedColumnBuffersLoaded())

    @property
    def is_ours(self) -> bool:
        return self.kind == "MapInArrowExec" and OURS in (self._nodes.command(self.java.func().func()) or b"")

    @property
    def is_shuffled(self) -> bool:
        return self.kind in EXCHANGES or (self.kind == "SortExec" and self.children[0].is_shuffled)

    @property
    def gives(self) -> Bounds[int]:
        """How many rows come out for a row that goes in."""
        if self.kind == "SampleExec" and self.java.withReplacement():
            return ANY
        return ROWS.get(self.kind, ANY)

    @property
    def logical(self) -> Any:
        """The optimized logical plan with its rows; None if there is none."""
        found = _option(self.java.logicalLink())
        if found is None and len(self.children) == 1 and ROWS.get(self.kind) == ALL:
            return self.children[0].logical
        return found

    @property
    def partitions(self) -> int:
        """How many it has; 0 if Spark does not say."""
        with contextlib.suppress(Exception):  # some scans would have to list their files
            if number := int(self.java.outputPartitioning().numPartitions()):
                return number
        is_known = self.kind == "UnionExec" or len(self.children) == 1
        below = [child.partitions for child in self.children] if is_known else [0]
        return sum(below) if all(below) else 0


class QueryPlan:
    """The physical plan of a DataFrame, as Spark has it before the query runs.

    Args:
        with_costs: whether to evaluate the `cost` functions of rate limits.

    Raises:
        OptionError: the DataFrame is a streaming one, or one of Spark Connect.
    """

    # _met: exchanges, caches and subqueries visited so far; Spark evaluates equal ones once
    # _counts: of the rows that a node gives if nothing below it calls, and that it reads if it calls

    def __init__(self, df: DataFrame, counting: Counting, *, with_costs: bool) -> None:
        java = getattr(df, "_jdf", None)
        if java is None:
            raise OptionError(
                "dry_run reads the plan in Spark's driver, which a Spark Connect client cannot reach. Run it in a "
                "classic session (SparkSession.builder.master('local[2]')) over a sample of the data; or count in "
                "df.explain() the nodes ArrowEvalPython, MapInArrow and BatchEvalPythonUDTF: each calls its function "
                "for each row"
            )
        if df.isStreaming:
            raise OptionError(
                "dry_run takes a DataFrame that ends, not a streaming one: use writeStream.foreachBatch(f) and, in f, "
                "print(dry_run(query_of(batch))) for a micro-batch"
            )
        self._session: Any = df.sparkSession
        self._counting = counting
        self._with_costs = with_costs
        context: Any = df.sparkSession.sparkContext
        self._cores = int(context.defaultParallelism)
        known = context._jsc.sc().getExecutorMemoryStatus().size()  # with the driver
        self.executors = max(1, int(known) - 1)
        executed = java.queryExecution().executedPlan()
        self._is_adaptive = _class(executed) == "AdaptiveSparkPlanExec"
        self._nodes = _Nodes(self._session)
        self._root = self._nodes.of(executed)
        conf = df.sparkSession.conf
        self._reuses = conf.get("spark.sql.exchange.reuse", "true") == "true"
        self._reuses_subqueries = conf.get("spark.sql.execution.reuseSubquery", "true") == "true"
        self._met: list[Any] = []
        self._counts: dict[_Node, _Counted] = {}

    def call_sites(self) -> list[CallSite]:
        """Every node that calls a function, from the top down."""
        return list(self._visit(self._root, _Reads()))

    def _visit(self, node: _Node, above: _Reads, *, below_join: bool = False) -> Iterator[CallSite]:
        if not node.may_call:
            return
        java, kind, calls = node.java, node.kind, node.calls
        for subquery in node.subqueries:
            if self._is_first(subquery, may_be_one=self._reuses_subqueries):
                is_sure = subquery.kind == "SubqueryExec" and not above.may_drop
                yield from self._visit(subquery.children[0], _Reads(ALL if is_sure else SOME))
        if kind in EXCHANGES:
            is_first = self._is_first(node, may_be_one=self._reuses or kind == "InMemoryTableScanExec")
            may_vanish = below_join and kind != "InMemoryTableScanExec" and self._is_replanned(node)
            if not (is_first or may_vanish):
                return
            made = self._behind(node, above)
            above = made.or_else(above if is_first else _Reads(SOME)) if may_vanish else made
        if kind in LIMITS and not (kind == "TakeOrderedAndProjectExec" and java.child().outputOrdering().isEmpty()):
            above = above.then("limited", SOME)
        elif not (calls or kind in ROWS or kind in LIMITS or kind in MAY_STOP or node.is_join):
            above = above.then("unknown", ANY)  # a node of another Spark version, or of a plug-in
        elif kind in MAY_STOP and not (calls or node.is_ours):
            above = above.then("unknown", SOME)
        yield from self._called(node, above)
        if node.is_join:
            for number, child in enumerate(node.children):
                yield from self._visit(child, self._beside(node, number, above), below_join=True)
        else:
            for child in node.children:
                yield from self._visit(child, above, below_join=below_join and kind == "SortExec")

    def _behind(self, node: _Node, above: _Reads) -> _Reads:
        """How an exchange reads its child: once and to the end in a stage of its own, unless Spark drops that stage."""
        made = _Reads(SOME, ("dropped",), may_drop=True) if above.may_drop else _Reads()
        if node.is_loaded:
            return _Reads(Bounds(0, 0), ("loaded",))
        if node.kind == "InMemoryTableScanExec":
            kept = self._session.sparkContext._jsc.getPersistentRDDs().values()
            is_begun = any(rdd.name() == node.cache.cachedName() for rdd in kept)  # an earlier action has cached a part
            if above.times.at_least == 0 or is_begun:
                made = _Reads(SOME, above.reasons, above.may_drop)
            return made.then("cached", ALL)
        if _class(node.java.outputPartitioning()) == "RangePartitioning" and node.partitions != 1:
            parts = 0 if self._is_replanned(node) else node.children[0].partitions
            return made.then("sorted", Bounds(2, 2 if 0 < parts <= EVEN else 3))
        return made

    def _beside(self, node: _Node, number: int, above: _Reads) -> _Reads:
        """How a join reads the first or the second of its sides."""
        java, kind, sides = node.java, node.kind, node.children
        join, side, other = java.joinType().toString(), sides[number], sides[1 - number]
        build = java.buildSide().toString() if kind.startswith("Broadcast") else ""
        is_replanned = self._is_adaptive and not (build and not self._is_replanned(sides[build == "BuildRight"]))
        is_nested = kind == "BroadcastNestedLoopJoinExec"
        if kind == "CartesianProductExec" or (is_nested and is_replanned and join == "Inner"):
            partitions = None if self._is_replanned(node) else other.partitions or None
            above = above.then("multiplied", Bounds(1, partitions))
        elif is_nested and (f"{join} {build}" in READ_AGAIN or (is_replanned and "Outer" in join)):
            above = above.then("reread", Bounds(1 if is_replanned else 2, 2))
        if is_replanned and above.times.at_least > 1:
            above = above.or_else(_Reads())
        if join == "LeftAnti" and kind in READ_WHOLE and number == 0:
            return above if _is_kept_by_anti_join(node) else self._dropped(above, is_needed=False)
        if join.startswith(KEEP[number]):
            return above
        is_needed = self._has_rows(other)
        # An exchange reads the side to its end, and so does a broadcast join that may replace the exchange.
        if is_needed and (kind in READ_WHOLE or side.is_shuffled):
            return above
        return self._dropped(above, is_needed=is_needed)

    def _dropped(self, above: _Reads, *, is_needed: bool) -> _Reads:
        above = above.then("dropped", SOME)
        return dataclasses.replace(above, may_drop=above.may_drop or (self._is_adaptive and not is_needed))

    def _is_replanned(self, node: _Node) -> bool:
        """Whether Spark plans a node again before it runs, after it has run the stages below."""
        return self._is_adaptive and any(child.has_exchange for child in node.children)

    def _called(self, node: _Node, above: _Reads) -> Iterator[CallSite]:
        if not node.calls:
            return
        rows, counted = self._read_by(node)
        (child,) = node.children or [node]
        tasks = max(1, min(child.partitions or self._cores, self._cores))
        unsure: Reason = "results" if child.may_call else "uncounted"
        for number, ((function, expression), known) in enumerate(zip(node.calls, counted.distinct, strict=True)):
            reasons: list[Reason] = [*above.reasons, *([] if rows.is_exact else [unsure])]
            if function.gets != ALL:
                reasons.append("operators")
            use = None if expression is None else (expression.resultId().id(), function.number)
            own, columns, why = rows * function.gets, _columns(function, expression), tuple(dict.fromkeys(reasons))
            costs = self._costs(function, counted, number)
            yield CallSite(function, columns, own, above.times, known, tasks, why, use, costs)

    def _costs(self, function: PlannedFunction, counted: _Counted, number: int) -> RowCosts | None:
        """What the `cost` functions of a function say, the function with this number of those that a node calls."""
        plan = function.function_plan
        if not self._with_costs or plan is None or not any(callable(limit.cost) for limit in plan.options.rate_limit):
            return None
        if self._counting == "estimate":
            return RowCosts(left_out='its cost needs the rows, of which counting="estimate" reads none')
        if counted.frame is None or (arguments := counted.arguments[number]) is None:
            return RowCosts(left_out="its cost needs arguments that only a run of the query makes")
        return costs_of(plan, function.names, counted.frame, arguments)

    def _is_first(self, node: _Node, *, may_be_one: bool) -> bool:
        """Whether Spark evaluates this node, and not an equal one that was visited before."""
        same = node.cache.cachedPlan() if node.kind == "InMemoryTableScanExec" else node.java
        if any(same.id() == other.id() or (may_be_one and same.sameResult(other)) for other in self._met):
            return False
        self._met.append(same)
        return True

    # rows

    def _rows(self, node: _Node) -> Bounds[int]:
        """How many rows a node gives."""
        java, kind, children = node.java, node.kind, node.children
        if not node.may_call:
            counted = self._count(node, node.logical, ()).rows
            return Bounds(counted or 0, counted)
        if node.is_loaded:
            known = _option(java.relation().computeStats().rowCount())
            return ANY if known is None else Bounds(int(str(known)), int(str(known)))
        if kind == "UnionExec":
            return sum(map(self._rows, children), Bounds(0, 0))
        if len(children) != 1:
            return ANY
        if node.calls:
            return self._read_by(node)[0] * node.calls[0][0].gives
        rows = self._rows(children[0]) * (SOME if kind in LIMITS else node.gives)
        if kind in LIMITS and java.limit() >= 0:  # -1: there is an OFFSET only
            parts = 1 if kind != "LocalLimitExec" else 0 if self._is_replanned(node) else node.partitions
            most = [rows.at_most, java.limit() * parts if parts else None]
            return Bounds(0, min((one for one in most if one is not None), default=None))
        return Bounds(0, 1) if kind.endswith("AggregateExec") and rows.at_most == 0 else rows  # one row of nothing

    def _read_by(self, node: _Node) -> tuple[Bounds[int], _Counted]:
        """How many rows a node reads that calls functions, and what is known of them."""
        if any(child.may_call for child in node.children):
            return self._rows(node.children[0]), self._count(node, *self._below_columns(node))
        logical = _option(node.java.logicalLink())
        below = None if logical is None or logical.children().isEmpty() else logical.children().apply(0)
        counted = self._count(node, below, [self._arguments(*call) for call in node.calls])
        return Bounds(counted.rows or 0, counted.rows), counted

    def _below_columns(self, node: _Node) -> tuple[Any, list[Column | None]]:
        """The plan below other columns that call, which has the same rows, and the arguments that are made of it."""
        below = node.children[0]
        while below.kind in ("ArrowEvalPythonExec", "ProjectExec") and below.may_call:
            below = below.children[0]
        logical = None if below.may_call else below.logical
        arguments: list[Column | None] = [None] * len(node.calls)
        if logical is not None:
            for number, (function, expression) in enumerate(node.calls):
                if expression is not None and expression.references().subsetOf(logical.outputSet()):
                    arguments[number] = self._arguments(function, expression)
        return (None if all(one is None for one in arguments) else logical), arguments

    def _has_rows(self, node: _Node) -> bool:
        if node.may_call or self._counting == "estimate":
            return self._rows(node).at_least > 0
        frame = self._frame(node.logical)
        return frame is not None and not frame.isEmpty()

    def _count(self, node: _Node, logical: Any, arguments: Sequence[Column | None]) -> _Counted:
        """What is known of the rows of a node; the arguments follow from the node."""
        if node not in self._counts:
            self._counts[node] = self._counted(logical, arguments)
        return self._counts[node]

    def _counted(self, logical: Any, arguments: Sequence[Column | None]) -> _Counted:
        """The rows of an optimized plan and the distinct values of each column."""
        # A query of its own, as running a part of the user's plan would keep its shuffles for the next action.
        unknown: list[int | None] = [None] * len(arguments)
        if logical is None or self._counting == "estimate":
            return _Counted(None if logical is None else _estimate(logical), unknown)
        frame = self._frame(logical)
        if frame is None:
            return _Counted(None, unknown)
        number = sf.count_distinct if self._counting == "exact" else sf.approx_count_distinct
        counts = [sf.lit(None) if one is None else number(one) for one in arguments]
        try:
            rows, *distinct = frame.agg(sf.count(sf.lit(1)), *counts).collect()[0]
        except Exception:  # of many types: Spark cannot compare maps, for example
            return _Counted(frame.count(), unknown, frame, arguments)
        return _Counted(rows, distinct, frame, arguments)

    def _frame(self, logical: Any) -> DataFrame | None:
        """The rows of an optimized plan; None if its physical plan could call an async function."""
        if logical is None:
            return None
        try:
            frame: Any = frame_of(self._session, logical)
            return None if self._nodes.of(frame._jdf.queryExecution().executedPlan()).may_call else frame
        except Exception:  # of many types: Spark need not be able to plan a part of an optimized plan alone
            return None

    def _arguments(self, function: PlannedFunction, expression: Any) -> Column | None:
        """All arguments of a function as one column."""
        if not function.arguments:
            return None
        if any(_class(one) == "PythonUDF" for one in _items(expression.children())):
            return None  # made by another function of the same node
        given = [column_of(self._session, one) for one in _items(expression.children())]
        # A table function gets the row as one struct.
        read = [given[at] if isinstance(at, int) else given[0].getField(at) for at in function.arguments]
        return sf.struct(*(column.alias(f"a{number}") for number, column in enumerate(read)))


def _columns(function: PlannedFunction, expression: Any) -> tuple[str, ...]:
    """The names of the columns that a function reads. Literals may be secrets and are not shown."""
    given = [] if expression is None else list(_items(expression.children()))
    names = [one.name() if _class(one) == "AttributeReference" else "..." for one in given]
    return tuple(at if isinstance(at, str) else names[at] for at in function.arguments or ())


def _chained(udf: Any) -> Iterator[Any]:
    """A function, and the functions in its argument: Spark evaluates f(g(x)) in one node, as one expression."""
    yield udf
    children = list(_items(udf.children()))
    if len(children) == 1 and _class(children[0]) == "PythonUDF":
        yield from _chained(children[0])


def _is_kept_by_anti_join(join: _Node) -> bool:
    """Whether NOT IN or NOT EXISTS reads all rows of its left side; else one row of the right side may drop them."""
    if join.kind == "BroadcastHashJoinExec":
        return not join.java.isNullAwareAntiJoin()
    return bool(join.java.condition().isDefined())


def _estimate(logical: Any) -> int | None:
    """Spark's estimate of the rows; computed from the size, as Spark does, if Spark has no number of rows."""
    statistics = logical.stats()
    rows = _option(statistics.rowCount())
    if rows is not None:
        return int(str(rows))
    size = int(str(statistics.sizeInBytes()))
    if size >= 2**62:  # Spark's value for an unknown size
        return None
    width = 8 + sum(int(attribute.dataType().defaultSize()) for attribute in _items(logical.output()))
    return math.ceil(size / width)


def _is_made_by_python(rdd: Any) -> bool:
    """Whether a plan that calls Python functions makes the rows of an RDD: of `df.rdd`, or of a lazy checkpoint."""
    seen, todo = set(), [rdd]
    while todo:
        rdd = todo.pop()
        scope = _option(rdd.scope())
        if scope is not None and scope.name() in PYTHON_SCOPES:
            return True
        seen.add(rdd.id())
        todo += [one.rdd() for one in _items(rdd.dependencies()) if one.rdd().id() not in seen]
    return False


def _items(seq: Any) -> Iterator[Any]:
    return (seq.apply(at) for at in range(seq.size()))


def _option(value: Any) -> Any:
    return value.get() if value.isDefined() else None


def _class(java: Any) -> str:
    name = str(java.getClass().getSimpleName())
    return "MapInArrowExec" if name == "PythonMapInArrowExec" else name  # so called before Spark 4.0
