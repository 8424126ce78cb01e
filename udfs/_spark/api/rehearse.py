"""rehearse: what a whole job will come to, from real calls for a sample of its rows."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from pyspark.sql import functions as sf

from ..._errors.checks import positive_int
from ..._errors.exceptions import OptionError
from ..._errors.figures import things
from ..._errors.safe import safe_repr
from ..._functions.async_function import AsyncFunction
from ..._functions.options import CallOptions, OnError, OnNullInput
from ..._functions.signature import batch_rows
from ..._rehearsal.rehearsal import Forecast, Job, Rehearsal, forecast, proposals
from ..._rehearsal.service_model import ServiceModel, TaskSample
from ..column import Called
from ..rehearsals import Part, run_part
from ..schemas import arguments, check_source, column_names, is_comparable
from .decorator import AsyncUDF, udf_of
from .stream import AsyncStream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LIGHT = 4  # one of so many calls is made with few beside it
FEWER = 8  # so many times fewer than with `capacity`
CALLS_OF_A_TASK = 20  # at least, or there are fewer tasks
GENERATIONS = 2  # of calls in flight, in a task of the sample
SLACK = 1.5  # times as many calls in flight as the sample had are no matter


def rehearse(
    df: DataFrame,
    function: Column | Callable[..., Any] | AsyncFunction,
    *columns: str | Column,
    sample: int = 200,
    **options: Unpack[CallOptions],
) -> Rehearsal:
    """How long a job will take, what it will cost and how many rows will fail, from real calls for a sample.

    The calls are made in Spark's tasks, as those of the job: a quarter with few in flight, the others with as many as
    the sample allows. They are real: they cost money, count for limits and budgets, and their results are kept in
    `store=`, so that the job does not make them again. What they came to then drives the real operator on a virtual
    clock for the whole job: with the options as they are, and with two other settings.

    The DataFrame is read four times, and so is what makes the arguments: `persist()` it if that calls another function.
    An error that ends the job ends the rehearsal; a row that fails is counted. Nothing is written.

    Args:
        df: the rows before the function is applied; not streaming.
        function, columns, options: as in `ordered_wait`; or a column that the function makes, such as `locate("code")`.
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
    if not hasattr(type(df), "mapInArrow"):
        raise OptionError(f"rehearse takes a DataFrame, not {safe_repr(df)}")
    if df.isStreaming:
        raise OptionError("rehearse takes a DataFrame that ends, and this one is streaming")
    udf, df, names = _called(df, function, columns, options)
    counted = _count(df, udf, names)
    parts = _make_calls(counted, udf, min(sample * batch_rows(udf.spec, udf.options), counted.called))
    seconds = time.monotonic() - began
    if len(parts) == 2:
        model = ServiceModel.of(*(part.tasks for part in parts))
    else:
        model = ServiceModel.of([], [task for part in parts for task in part.tasks])
    tasks = [task for part in parts for task in part.tasks]
    records = [one for task in tasks for one in task.records]
    read, answered = (sum(getattr(task, figure) for task in tasks) for figure in ("rows", "answered"))
    called = (1 - answered / read if read else 0.0) / (model.rows_per_call if model.calls else 1.0)
    if udf.options.store is not None and counted.distinct is not None and counted.called:
        called *= counted.distinct / counted.called
    job = Job(
        counted.partitions,
        counted.tasks,
        called,
        min((part.startup for part in parts), default=0.0),
        None if counted.distinct is None or not counted.called else counted.distinct / counted.called,
    )
    with ThreadPoolExecutor(1) as apart:  # a notebook's thread has a loop that runs
        as_is, others = apart.submit(_forecasts, udf, model, job).result()
    return Rehearsal(
        function=udf.spec.name,
        columns=tuple(names),
        rows=counted.rows,
        sample=sum(len({one.call for one in task.records}) for task in tasks),
        sample_seconds=seconds,
        sample_spent=_sums(records),
        latencies=tuple(model.latencies),
        as_is=as_is,
        proposals=tuple(others),
        notes=tuple(_notes(udf, model, tasks, job, counted.called, as_is)),
    )


def _forecasts(udf: AsyncUDF[..., Any], model: ServiceModel, job: Job) -> Any:
    as_is = forecast("as it is", {}, udf.options, model, job)
    return as_is, proposals(udf.options, model, job, as_is) if as_is.calls else []


def _called(
    df: DataFrame, function: Any, columns: Any, options: Any
) -> tuple[AsyncUDF[..., Any], DataFrame, list[str]]:
    """The function, the DataFrame of its arguments, and their names."""
    is_column = hasattr(function, "isNull")
    made: Called | None = vars(function).get("_asyncudf") if is_column else None
    if made is None:
        if is_column or not (callable(function) or isinstance(function, AsyncFunction)):
            raise OptionError(
                "rehearse takes the DataFrame, and a column that an async function makes, as in rehearse(df, "
                "locate('code')), or the function and its columns: rehearse(df, locate, 'code'); not "
                f"{safe_repr(function)}. An alias or an expression around the column hides the function"
            )
        udf = udf_of(function, None, options)
        return udf, df, list(column_names(columns, df.schema, df))
    if columns:
        raise OptionError(f"{made.spec.name}(...) has its columns already; leave out {', '.join(map(str, columns))}")
    udf = AsyncUDF(made.spec, made.options, made.returns)
    udf = udf.with_options(**options) if options else udf
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
    tasks: int


def _count(df: DataFrame, udf: AsyncUDF[..., Any], names: list[str]) -> _Counted:
    check_source(df.schema, "the DataFrame")
    fields = df.schema.fields
    positions = arguments(udf.spec, fields, names)[1]
    numbered = df.toDF(*map(str, range(len(fields))))
    read = numbered.select(*[sf.col(str(position)).alias(str(number)) for number, position in enumerate(positions)])
    called = read
    if udf.options.on_null_input is OnNullInput.NULL and positions:
        called = read.where(
            functools.reduce(operator.and_, (sf.col(str(number)).isNotNull() for number in range(len(positions))))
        )
    by_partition = called.groupBy(sf.spark_partition_id().alias("p")).agg(sf.count(sf.lit(1))).collect()
    partitions = [number for _, number in sorted(tuple(row) for row in by_partition)]
    distinct = None
    if positions and all(is_comparable(fields[position].dataType) for position in positions):
        distinct = called.agg(sf.count_distinct(sf.struct(*map(sf.col, called.columns)))).collect()[0][0]
    rows = sum(partitions) if called is read else df.count()
    cores = df.sparkSession.sparkContext.defaultParallelism if hasattr(df, "_jdf") else len(partitions)
    found = called.toDF(*[fields[position].name for position in positions]) if positions else df
    return _Counted(found, partitions, rows, sum(partitions), distinct, max(1, min(cores, len(partitions))))


def _make_calls(counted: _Counted, udf: AsyncUDF[..., Any], rows: int) -> list[Part]:
    """Make the calls of so many rows, in one or two parts."""
    if not rows:
        return []
    options, df = udf.options, counted.df
    source = df.distinct() if options.store is not None and counted.distinct is not None else df
    number = "asyncudf_row_number"
    chosen = source.orderBy(sf.rand()).limit(rows).withColumn(number, sf.monotonically_increasing_id()).persist()
    calls = rows // batch_rows(udf.spec, options)
    tasks = max(1, min(counted.tasks, calls // CALLS_OF_A_TASK))
    per_task = max(1, calls // tasks)
    full = max(1, min(options.slots, per_task * (LIGHT - 1) // LIGHT // GENERATIONS))
    if options.job_capacity is not None:
        full = max(1, min(full, options.job_capacity // tasks))
    light = max(1, min(full // FEWER, per_task // LIGHT))
    stages = [(sf.lit(True), full)]
    if full > 1 and calls >= 2 * LIGHT:
        batch = batch_rows(udf.spec, options)
        is_light = sf.col(number) % (LIGHT * batch) < batch
        stages = [(is_light, light), (~is_light, full)]
    try:
        found: list[Part] = []
        for where, capacity in stages:
            part = chosen.where(where).drop(number).repartition(tasks)
            careful = udf.with_options(capacity=capacity, on_error=OnError.NULL, max_failures=None, queue_size=None)
            stream = AsyncStream(part).ordered_wait(careful, *df.columns, as_="asyncudf_result")
            found.append(run_part(part, stream._source.plan([stream._ref.result]).task))
        return found
    finally:
        chosen.unpersist()


def _sums(records: list[Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in records:
        for unit, amount in one.spent.items():
            found[unit] = found.get(unit, 0.0) + amount
    return found


def _notes(
    udf: AsyncUDF[..., Any], model: ServiceModel, tasks: list[TaskSample], job: Job, called: int, as_is: Forecast
) -> Iterator[str]:
    """What the sample did not show."""
    running = max(1, min(job.slots, len(job.partitions)))
    wanted = min(udf.options.slots * running, udf.options.job_capacity or udf.options.slots * running)
    if model.concurrency is not None:
        yield f"with more than about {model.concurrency:.0f} calls in flight the service only gets slower"
    elif model.calls and wanted > SLACK * model.most and called > model.most:
        yield (
            f"the sample had at most {things(model.most, 'call')} in flight, the job will have {wanted}: whether the "
            f"service is as fast then shows with sample={wanted * GENERATIONS * LIGHT // (LIGHT - 1)}"
        )
    if (bucket := model.bucket) is not None:
        yield f"the service took about {bucket.rate:.3g} calls a second and refused others"
    elif not udf.options.rate_limit and as_is.seconds.likely > 0:
        made, a_minute = sum(len(task.records) for task in tasks), 60 * as_is.calls / as_is.seconds.likely
        if min(as_is.calls, a_minute) > 2 * made:
            yield (
                f"the job will make about {things(float(f'{a_minute:.2g}'), 'call')} a minute: a limit that "
                f"{things(made, 'call')} do not reach did not show"
            )
    if (answered := sum(task.answered for task in tasks)) and udf.options.store is not None:
        yield f"{things(answered, 'row')} of the sample came from the store"
    if called > 0 and len(model.calls) < 30:
        yield f"{things(len(model.calls), 'call')} are few to tell from: the intervals are wide"
