"""rehearse: what a whole job will come to, from real calls for a sample of its rows."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StructField, StructType

from asyncudf.queues._public import public

from ..._chain.chain import Chain, SourceReader
from ..._chain.plan import WaitFactory
from ..._engine.calls.recorder import AttemptRecord, Recorder
from ..._errors.checks import positive_int
from ..._errors.exceptions import OptionError
from ..._errors.figures import amount_, count, things
from ..._errors.safe import one_line, safe_repr
from ..._functions.annotations import Vector
from ..._functions.async_function import AsyncFunction
from ..._functions.options import CallOptions, OnError, OnNullInput, OnSpent, Options, shows_options
from ..._functions.signature import FunctionSpec, group_rows
from ..._limits.budgets.option import CALLS, ROUNDING, Budget, budget_label, spent_names
from ..._limits.budgets.windows import Windows
from ..._limits.health.option import Failures
from ..._limits.keys import by_label
from ..._rehearsal.arithmetic import (
    Estimate,
    Forecast,
    Job,
    Sample,
    SampleSize,
    TaskSample,
    Z,
    forecast,
    paces_of,
    share_of,
    variation,
)
from ..._rehearsal.rehearsal import Rehearsal
from .._compat import engine_of, slots_of
from ..chain_task import ChainTask
from ..column import ColumnOrigin
from ..evaluations import StreamSource, result_plan
from ..marks import marked
from ..pickling import Travelling
from ..planner import source_node, wait_node
from ..schemas import arguments, check_frame, check_source, column_names
from .decorator import AsyncUDF, udf_of
from .dry_run import count_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


@public("asyncudf")
@shows_options(CallOptions)
def rehearse(
    df: DataFrame,
    function: Column | Callable[..., Any] | AsyncFunction,
    *columns: str | Column,
    sample: int = 200,
    returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
    **options: Unpack[CallOptions],
) -> Rehearsal:
    """How long a job will take, what it will cost and how many rows will fail, from real calls for a sample.

    The calls are made in Spark's tasks, as those of the job, with as many in flight as the sample allows. They are
    real: they cost money, count for limits and budgets, and their results are kept in `store=`, so that the job does
    not make them again. Their times, costs and errors are measured. Arithmetic tells what follows for the whole job, by
    its rows or distinct keys, `capacity` x tasks, the limits, and the budgets with what is spent of them. Each figure
    is a range.

    The DataFrame is read three times, once more for each budget or rate limit by key, and so is what makes the
    arguments: `persist()` it if that calls another function. An error that ends the job ends the rehearsal; a row that
    fails is counted. Nothing is written.

    Args:
        df: the rows before the function is applied; not streaming.
        function, columns, returnType, options: as in `ordered_wait`; or a column that the function makes, such as
            `locate("code")`.
        sample: how many calls to make; of a vectorized function these are batches.

    Returns:
        Plain data; `print` shows it as text, and its `report` writes a page.

    Raises:
        OptionError: a streaming DataFrame, no function, or a value that cannot work.
        FunctionError: unknown columns, or a function that cannot take these.

    >>> print(rehearse(flights, locate("code"), sample=200))  # doctest: +SKIP
    """
    began = time.monotonic()
    positive_int(sample, "sample")
    check_frame(df, "rehearse")
    if df.isStreaming:
        raise OptionError("rehearse takes a DataFrame that ends, and this one is streaming")
    udf, df, names = _called(df, function, columns, returnType, options)
    check_source(df.schema, "the DataFrame")
    spec, positions = arguments(udf.spec, df.schema.fields, names)
    udf, names = AsyncUDF(spec, udf.options, udf.returns), [df.columns[position] for position in positions]
    counted = _count(df, udf, positions)
    tasks, in_flight, startup = _make_calls(counted, udf, sample)
    seconds = time.monotonic() - began
    seen = Sample(tasks, in_flight)
    called, unsure = _calls_of_a_row(udf, seen, tasks, counted)
    by_place = {place: udf.options.counted[place].by for place, _ in paces_of(udf.options)}
    commonest = {place: counted.commonest(spec, by) for place, by in by_place.items() if by}
    job = Job(counted.partitions, counted.slots, called, startup, unsure, commonest)
    as_is = forecast(udf.options, seen, job)
    return Rehearsal(
        function=udf.spec.name,
        columns=tuple(names),
        rows=counted.rows,
        sample=len(seen.calls),
        sample_seconds=seconds,
        sample_spent=_sums(one for task in tasks for one in task.records),
        latencies=tuple(seen.latencies),
        as_is=as_is,
        notes=tuple(_notes(udf, seen, tasks, job, counted, as_is)),
    )


def _called(
    df: DataFrame, function: Any, columns: Any, returns: Any, options: Any
) -> tuple[AsyncUDF[..., Any], DataFrame, list[str]]:
    """The function, the DataFrame of its arguments, and their names."""
    is_column = hasattr(function, "isNull")
    made: ColumnOrigin | None = vars(function).get("_asyncudf") if is_column else None
    if made is None:
        if is_column or not (callable(function) or isinstance(function, AsyncFunction)):
            raise OptionError(
                "rehearse takes the DataFrame, and a column that an async function makes, as in rehearse(df, "
                "locate('code')), or the function and its columns: rehearse(df, locate, 'code'); not "
                f"{safe_repr(function)}. An alias or an expression around the column hides the function"
            )
        return udf_of(function, returns, options), df, list(column_names(columns, df.schema, df))
    udf: AsyncUDF[..., Any] = made.udf
    who = udf.spec.name
    if columns or returns is not None:
        left_out = [*map(str, columns), *["returnType"] * (returns is not None)]
        raise OptionError(f"{who}(...) has its columns and type already; leave out {', '.join(left_out)}")
    for one in made.columns:
        if not isinstance(one, str) and (inner := vars(one).get("_asyncudf")) is not None:
            other = inner.udf.spec.name
            raise OptionError(
                f"{who} takes what {other} gives, and rehearse reads the rows several times and would call {other} for "
                f"all of them: add its column first, persist() the DataFrame, and rehearse {who} with that column"
            )
    if options:
        udf = udf.with_options(**options)
        if udf.spec.parameters != made.udf.spec.parameters:  # some keep their defaults
            udf.spec = udf.spec.with_columns(made.udf.spec.parameters)
    given = [sf.col(one) if isinstance(one, str) else one for one in made.columns]
    names = [f"c{number}" for number in range(len(given))]
    if len(udf.spec.parameters) == len(names):
        names = [*udf.spec.parameters]
    return udf, df.select(*given).toDF(*names), names


class _Counted(NamedTuple):
    df: DataFrame  # the rows that make a call
    partitions: list[int]  # rows that make a call, of each
    rows: int
    called: int
    distinct: int | None
    slots: int  # tasks that run at a time
    unlike: DataFrame  # of the rows one for each key of the store, or for each distinct argument
    stores: bool

    @property
    def makes_calls(self) -> DataFrame:
        """A row for each call, if that is of one row."""
        return self.unlike if self.stores else self.df

    @property
    def unequal(self) -> float:
        """The share of rows that equal no other one, as far as a store tells them."""
        return self.distinct / self.called if self.stores and self.distinct is not None and self.called else 1.0

    def calls_of(self, rows: float, share: float = 1.0) -> float:
        """Calls of so many rows at most: each is of one partition."""
        return float(sum(math.ceil(round(one * self.unequal * share / rows, 6)) for one in self.partitions))

    def commonest(self, spec: FunctionSpec, by: Sequence[str]) -> float:
        """The share of the key that has most of the calls."""
        most, calls = _calls_by(spec, self.makes_calls, by).agg(sf.max("calls"), sf.sum("calls")).collect()[0]
        return most / calls if calls else 1.0


def _count(df: DataFrame, udf: AsyncUDF[..., Any], positions: Sequence[int]) -> _Counted:
    skips_nulls = udf.options.on_null_input is OnNullInput.NULL
    found = count_rows(df, positions, skips_nulls=skips_nulls)
    fields = df.schema.fields
    numbered = df.toDF(*map(str, range(len(fields))))  # equal names, and names with dots, are no matter then
    called = numbered.select(*[sf.col(str(place)).alias(str(number)) for number, place in enumerate(positions)])
    if skips_nulls:
        called = called.where(functools.reduce(operator.and_, (sf.col(one).isNotNull() for one in called.columns)))
    # In two steps: Sail numbers partitions in a projection alone.
    by_partition = called.select(sf.spark_partition_id().alias("p")).groupBy("p").agg(sf.count(sf.lit(1))).collect()
    partitions = [number for _, number in sorted(tuple(row) for row in by_partition)]
    if udf.spec.takes_mapping or udf.spec.vectors == (Vector.FRAME,):  # by their names
        called = called.toDF(*[fields[position].name for position in positions])
    slots = max(1, min(_cores(df), len(partitions)))
    distinct, unlike = found.distinct, called.distinct() if found.distinct is not None else called
    if udf.options.store is not None and udf.options.store.key is not None:
        unlike = _of_each_key(called, udf)
        distinct = unlike.count()
    return _Counted(
        called, partitions, found.rows, found.called, distinct, slots, unlike, udf.options.store is not None
    )


def _of_each_key(df: DataFrame, udf: AsyncUDF[..., Any]) -> DataFrame:
    """One row for each key that the store's `key=` makes of the rows."""
    key = _free_name("asyncudf_key", df.columns)
    given = StructType([*df.toDF(*map(str, range(len(df.columns)))).schema.fields, StructField(key, BinaryType())])
    keyed = df.toDF(*given.names[:-1]).mapInArrow(StoreKeyTask(_task(df, udf, udf.options), key), given)
    return keyed.dropDuplicates([key]).drop(key).toDF(*df.columns)


def _task(df: DataFrame, udf: AsyncUDF[..., Any], options: Options) -> ChainTask:
    """A chain of the function alone, over all columns."""
    result = _free_name("asyncudf_result", df.columns)
    session = df.sparkSession
    node = wait_node(source_node(df), udf.spec, options, udf.returns, df.columns, None, None, result, session)
    return StreamSource.of(df, False, None, None).task([result_plan(node)])


def _cores(df: DataFrame) -> int:
    """Tasks that run at a time; over Spark Connect, as many as the partitions of rows that are nowhere yet."""
    if (known := slots_of(df.sparkSession)) is not None:
        return known
    if not engine_of(df.sparkSession).spreads_ranges:  # it runs as many as its machine has cores
        return int(df.sparkSession.range(0, 1, 1, 1).mapInArrow(cores_there, "cores int").collect()[0].cores)
    numbered = df.sparkSession.range(10_000).select(sf.spark_partition_id().alias("partition"))
    last: int = numbered.agg(sf.max("partition")).collect()[0][0]
    return last + 1


def cores_there(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"cores": pa.array([os.cpu_count() or 1], pa.int32())})


def _make_calls(counted: _Counted, udf: AsyncUDF[..., Any], sample: int) -> tuple[list[TaskSample], int, float]:
    """What the tasks of the sample did, with so many calls in flight; and the seconds of the query beside the calls."""
    options, group = udf.options, group_rows(udf.spec, udf.options)
    if not (rows := min(sample * group, counted.called)):
        return [], 1, 0.0
    careful: dict[str, Any] = {}
    if group > 1 and options.batch_weight is None:  # calls of small partitions have few rows
        group = max(1, round(counted.called * counted.unequal / counted.calls_of(group)))
        careful, rows = {"batch_size": group}, min(sample * group, counted.called)
    calls = math.ceil(rows / group) if options.batch_weight is None else min(sample, rows)
    size = SampleSize.of(options, calls, counted.slots)
    chosen = counted.makes_calls.orderBy(sf.rand()).limit(rows).repartition(size.tasks)
    careful |= {"capacity": size.in_flight, "on_error": OnError.NULL, "max_failures": None, "queue_size": None}
    most = calls if udf.spec.vectorized else None  # a call may be of fewer rows than a group has
    found, startup = _run(chosen, RehearsalTask(_task(chosen, udf, options.replace(careful)), most, size.tasks))
    return found, size.in_flight, startup


def _calls_of_a_row(
    udf: AsyncUDF[..., Any], seen: Sample, tasks: list[TaskSample], counted: _Counted
) -> tuple[float, tuple[float, float]]:
    """Calls for each row that makes one, and of what to what times that."""
    read, answered = sum(task.rows for task in tasks), sum(task.answered for task in tasks)
    if not (read and seen.calls):
        return 0.0, (1.0, 1.0)
    low, share, high = share_of(read - answered, read) if answered else Estimate(1.0, 1.0, 1.0)
    rows, least, most = float(group_rows(udf.spec, udf.options)), low / share, high / share
    if udf.options.batch_weight is not None:
        of_calls = [call[0].rows for call in seen.calls]
        rows, error = statistics.fmean(of_calls), Z * variation(of_calls) / math.sqrt(len(of_calls))
        least, most = least / (1 + error), most / max(1 - error, 0.1)
    if udf.spec.vectorized:
        return counted.calls_of(rows, share) / counted.called, (least, most)
    return share * counted.unequal, (least, most)


@dataclasses.dataclass(frozen=True)
class StoreKeyTask(Travelling):
    """For `mapInArrow`: beside each row the key under which a function's store has its result."""

    task: ChainTask
    name: str  # of its column

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read, head = SourceReader(self.task.plan), self.task.plan.head
        assert head is not None
        assert isinstance(head.factory, WaitFactory)
        keys = head.factory.function_plan.result_keys()
        with self.task.error_reporting:
            for batch in batches:
                found = pa.array([keys.of(row) for row, _, _ in read(batch)], pa.binary())
                yield pa.RecordBatch.from_arrays([*batch.columns, found], [*batch.schema.names, self.name])


@dataclasses.dataclass(frozen=True)
class RehearsalTask(Travelling):
    """The worker's side, for `mapInArrow`: runs a chain of one function, and gives what its calls came to."""

    task: ChainTask
    calls: int | None  # at most, in all tasks; None: one for each row
    tasks: int

    def most(self, partition: int) -> int:
        if self.calls is None:
            return sys.maxsize
        return self.calls // self.tasks + (partition < self.calls % self.tasks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        recorders: list[Recorder] = []
        totals: list[Any] = []

        def built(chain: Chain) -> None:
            for counted in chain.counted.values():
                recorders.append(Recorder(counted.counters, self.most(chain.partition)))
                totals.append(counted.counters.totals)
                counted.observe(recorders[-1])

        with self.task.error_reporting:
            for _ in self.task.run(batches, built=built):
                pass
            found = []
            for recorder, total in zip(recorders, totals, strict=True):
                without = total.unpaid + recorder.not_called  # rows that failed as a budget or the sample was used up
                rows, failed = total.rows - without, total.failures - without
                spent = {name: told[2] for name, told in total.budgets.items()}
                figures = [rows, total.store_hits, failed, total.errors, total.examples, spent]
                found.append(json.dumps([recorder.records, *figures]))
            yield pa.RecordBatch.from_pydict({"record": pa.array(found, pa.string())})


def _run(df: DataFrame, task: RehearsalTask) -> tuple[list[TaskSample], float]:
    began = time.monotonic()
    numbered = df.toDF(*map(str, range(len(df.columns))))  # the task knows their names; Spark takes none with dots here
    rows = marked(numbered).mapInArrow(task, "record string").collect()
    seconds, found = time.monotonic() - began, [_sample(*json.loads(row[0])) for row in rows]
    spans = [(record.began, record.began + record.seconds) for task in found for record in task.records]
    calls = max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0
    return found, max(0.0, seconds - calls)


def _sample(records: Sequence[Any], *figures: Any) -> TaskSample:
    made = (AttemptRecord(*record) for record in records)
    return TaskSample([one._replace(costs=tuple(one.costs), keys=tuple(one.keys)) for one in made], *figures)


def _free_name(name: str, taken: Sequence[str]) -> str:
    return name if name not in map(str.lower, taken) else _free_name(name + "_", taken)


def _sums(records: Iterable[AttemptRecord]) -> dict[str, float]:
    found: Counter[str] = Counter()
    for one in records:
        found.update(one.spent)
    return dict(found)


def _notes(
    udf: AsyncUDF[..., Any], seen: Sample, tasks: list[TaskSample], job: Job, counted: _Counted, as_is: Forecast
) -> Iterator[str]:
    """What failed in the sample, what it did not show, and what ends the job."""
    yield from _failed(tasks)
    made, wanted = len(seen.calls), job.in_flight(udf.options)
    larger = SampleSize.calls_for(wanted, job.running)
    if seen.calls and wanted > seen.in_flight and counted.called > larger > made:  # else a limit does it
        yield (
            f"the sample had at most {things(seen.in_flight, 'call')} in flight, the job will have {wanted}: whether "
            f"the service is as fast then shows with sample={larger}"
        )
    attempts = sum(len(call) for call in seen.calls)
    if (taken := seen.taken_by_the_service) is not None:
        yield (
            f"the service refused calls, and took at least about {taken:.3g} a second: a rate_limit= that you know "
            "makes the range of the time narrow"
        )
    elif not udf.options.rate_limit and as_is.seconds.likely > 0:
        a_minute = 60 * as_is.calls / as_is.seconds.likely
        if min(as_is.calls, a_minute) > 2 * attempts:
            yield (
                f"the job will make about {things(float(f'{a_minute:.2g}'), 'call')} a minute: a limit that "
                f"{things(attempts, 'call')} do not reach did not show"
            )
    yield from _ends(udf, counted, as_is, tasks)
    if (answered := sum(task.answered for task in tasks)) and udf.options.store is not None:
        shares = share_of(sum(task.rows for task in tasks) - answered, sum(task.rows for task in tasks))
        low, high = (count(one * counted.unequal * counted.called) for one in (shares.low, shares.high))
        yield (
            f"{things(answered, 'row')} of the sample came from the store: of all "
            f"{count(counted.unequal * counted.called)} that it may have, {low} to {high} are to be called"
        )
    if 0 < made < min(30, counted.called):
        yield "few calls were made, so the ranges are wide"


def _failed(tasks: list[TaskSample]) -> Iterator[str]:
    errors = sum((Counter(task.errors) for task in tasks), Counter[str]())
    for kind, times in errors.most_common(1):
        example = next(one_line(task.examples[kind]) for task in tasks if kind in task.examples)
        yield f"{times:,} of {things(errors.total(), 'failed attempt')} of the sample ended with {kind}: {example}"


def _ends(udf: AsyncUDF[..., Any], counted: _Counted, as_is: Forecast, tasks: Sequence[TaskSample]) -> Iterator[str]:
    """What ends the job, or its calls, before all rows have results; a forecast is of all calls."""
    options = udf.options
    if options.on_error is OnError.RAISE and as_is.failures.likely >= 0.5:
        yield "the first failed row ends the job, by on_error='raise'"
    most, failed = options.max_failures, round(as_is.failures.likely)
    if most is not None and failed and most.is_spent(Failures(counted.rows, failed)):
        yield f"the job ends early, by max_failures={most.most:g}: about {things(failed, 'row')} fail"
    own = _sums([one for task in tasks for one in task.records])
    own[CALLS] = sum(len(task.records) for task in tasks)
    df, calls, unit = counted.df, counted.called, "row"
    if options.store is not None and counted.distinct is not None:
        df, calls = counted.unlike, counted.distinct
        unit = "distinct argument" if options.store.key is None else "key"
    for budget, name in zip(options.budgets, spent_names(options.budgets), strict=True):
        need = as_is.attempts if budget.unit == CALLS else as_is.spent.get(name)
        reserve, shown = budget.reserve, one_line(budget_label(budget))
        if isinstance(reserve, int | float) and reserve > budget.amount:
            yield f"no call begins: each reserves {amount_(reserve)}, more than the budget of {shown}"
        elif need is not None and need.likely:
            # What the sample has spent is of the job, if its results are kept.
            before = max((task.spent.get(budget.name or "", 0.0) for task in tasks), default=0.0)
            before = max(
                0.0, before - own.get(CALLS if budget.unit == CALLS else name, 0.0) * (options.store is not None)
            )
            if before > ROUNDING * budget.amount:
                shown += f", of which {amount_(before)} are spent"
            spent, unpaid, may_be_spent = _unpaid(udf.spec, df, calls, budget, need, as_is.seconds.likely, before)
            end = f"about {things(round(unpaid), unit)} have no result (the figures above are of all calls)"
            if spent:
                who = f"{things(spent, 'value')} of {by_label(budget.by)} need{'s' * (spent == 1)}"
                yield (
                    f"{who if budget.by else 'all calls need'} more than the budget of {shown}, and "
                    f"{'then the job ends' if options.on_spent is OnSpent.RAISE else end}"
                )
            elif may_be_spent:
                who = f"{things(may_be_spent, 'value')} of {by_label(budget.by)}"
                yield f"{who if budget.by else 'all calls'} may need more than the budget of {shown}"


def _calls_by(spec: FunctionSpec, df: DataFrame, by: Sequence[str]) -> DataFrame:
    """The number of calls for each value of these parameters; `df` has a row for each call."""
    # By the places of columns, as names may be equal or have dots; and as texts, as the keys of the job are.
    places = {name: place for place, name in enumerate(df.columns if spec.takes_mapping else spec.parameters)}
    numbered = df.toDF(*map(str, range(len(df.columns))))
    keys = [sf.col(str(places[name])).cast("string") for name in by]
    return numbered.groupBy(*keys).agg(sf.count(sf.lit(1)).alias("calls"))


def _unpaid(
    spec: FunctionSpec,
    df: DataFrame,
    calls: int,
    budget: Budget,
    need: Estimate,
    seconds: float,
    before: float = 0.0,
) -> tuple[int, float, int]:
    """How many values of a key have calls that are not paid, how many calls; and how many values may have some.

    Args:
        df: has a row for each call.
        need: what all calls cost.
        before: spent of the budget in the window of now.
    """
    if budget.by is None:
        each = df.sparkSession.range(1).select(sf.lit(calls).alias("calls"))
    else:
        each = _calls_by(spec, df, budget.by)
    # A window in which more is asked for than it has is the last one: the other rows come at once, and get nothing.
    now = time.time()
    window = Windows(budget.per).at(now)

    def unpaid(cost: float) -> Column:
        paid, asked = budget.amount / cost, sf.col("calls")
        left = max(0.0, budget.amount - before) / cost
        first, whole = (
            min(1.0, span / max(seconds, 1e-9)) * asked for span in (window.end - now, window.end - window.start)
        )
        had = sf.when(first > left, left).when(whole <= paid, asked).otherwise(sf.least(asked, first + paid))
        return sf.when(asked - had >= 0.5, asked - had)

    likely, most = (unpaid(one / calls) for one in need[1:])
    spent, rows, may_be_spent = each.agg(sf.count(likely), sf.sum(likely), sf.count(most)).collect()[0]
    return spent, rows or 0.0, may_be_spent
