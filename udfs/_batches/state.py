"""The state of a submission: a folder that Spark can write, with its rows, requests, results and journal.

    rows/               the input, and the key of each row's request
    parts/attempt=1/    the requests of an attempt, a folder for each part
    pieces/attempt=1/   requests of failed jobs, a folder for each part, with a folder for each piece of the part
    results/wave=.../   outcomes of requests, a file for each part
    journal/wave=.../   events, lines of JSON; one of them says what was submitted
    checkpoints/        events of many waves in one file, to read them faster

Spark's own reader and writer do everything, so the folder may be wherever Spark can write, also over Spark Connect.
Nothing is changed once an event says that it counts: `rows` from the event "submitted" on, a part from "planned" on,
results from "settled" on. What a killed process wrote before such an event is written anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._errors.exceptions import OptionError
from .._errors.records import LETTER_FIELDS
from .._spark._compat import VariantType, engine_of, inside, setting, slots_of
from .._spark.marks import marked
from .._spark.result_table import WAVE, ResultTable, is_missing, observed, read_files, wave_name
from .._spark.types import parsed_offline
from .files import HadoopFiles, naming
from .journal import HALVES, PIECES, REST, REUSED, Event
from .journal_files import JournalFiles
from .tasks import FormTask, KeyTask, LookupTask, PollTask, ReparseTask, SendTask, SettleTask

# A task's file is there when the task ends, not when its job does: then less is lost if the driver is killed meanwhile.
AT_TASK_END = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
# Parquet looks at its memory after a hundred rows, which may have a megabyte each.
LARGE_ROWS = {"parquet.block.size": 2**25, "parquet.block.size.row.check.min": 8, "parquet.page.size.row.check.min": 8}
# A session may be set to keep the parts that a killed process has left, beside those that are written anew.
WHOLE = {"partitionOverwriteMode": "static"}
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"  # from Spark 4.1 on
PARTS_AT_ONCE = 64  # in one Spark job
# From Spark 4.1 on a union of frames that have one partition each has one partition too: one task would send all parts.
UNION = "spark.sql.unionOutputPartitioning"
THRESHOLD = "spark.speculation.task.duration.threshold"
FILLED = 0.9  # of a part, by the number of requests: it is known to some percent
KINDS = ("ok", "failed", "again", "apart")  # if a request has several, the first of these counts

ERROR: spark.DataType = parsed_offline(f"struct<{','.join(f'{name}:{kind}' for name, kind in LETTER_FIELDS.items())}>")
COSTS = spark.ArrayType(spark.DoubleType())
LINES: Any = parsed_offline("struct<value:string>")
STATES: Any = parsed_offline("number bigint, state string, answers bigint, error string")


@dataclasses.dataclass(frozen=True)
class StateFolder:
    """Reads and writes a state."""

    session: SparkSession
    path: str
    journal: JournalFiles  # of this path
    schema: spark.StructType = dataclasses.field(default_factory=spark.StructType)  # of the rows
    positions: Sequence[int] = ()  # of the columns that the function reads
    value: Any = None  # the type of a result
    budgets: int = 0

    @property
    def sends_one_by_one(self) -> bool:
        """Whether each part needs a Spark job of its own, or more than one job of the service may be sent twice.

        With speculation, Spark may run a task a second time while the first runs, but not the only task of a job.
        Without it, parts need jobs of their own if the session does not allow a task for each part. Raises OptionError
        if Spark may run even the only task of a job a second time.
        """
        if setting(self.session, "spark.speculation") != "true":
            with self._settings():
                return setting(self.session, UNION) == "true"
        if name := setting(self.session, THRESHOLD):
            raise OptionError(
                f"{THRESHOLD} is {name}: Spark would send a job that takes longer once more, and it would be billed "
                "twice; submit in an application without it, or without spark.speculation"
            )
        return True

    @property
    def slots(self) -> int:
        """How many tasks may run at once, as far as it is known."""
        return slots_of(self.session) or 4

    def check_free(self) -> None:
        """Raises OptionError if there are foreign files where a new state would write its own."""
        tables = ("journal", "checkpoints", "rows", "parts", "pieces", "results")
        with naming(self.path, "read"):
            there = [table for table in tables if self._is_there(table)]
        if there and "journal" not in there:
            raise OptionError(
                f"the folder {self.path} has {there[0]}/ that no submission has written; take a new one as the state"
            )

    # Journal.

    def events(self) -> list[Event]:
        """The journal; empty if it is not there."""
        with naming(self.path, "read"):
            return self.journal.events(is_there=self._is_there("journal"))

    def add(self, events: Sequence[Event]) -> None:
        """Add events to the journal, all or none."""
        self.journal.add(events)

    def checkpoint(self) -> None:
        """Let the next process read fewer files."""
        self.journal.checkpoint()

    # Rows.

    def keyed(self, df: DataFrame, task: KeyTask) -> DataFrame:
        """Rows of the schema, with columns named by position, and the key of their request."""
        schema = self._row_schema()
        return df.toDF(*schema.names[:-1]).mapInArrow(task, schema)

    def write_rows(self, keyed: DataFrame) -> dict[str, int]:
        """Write the rows, in place of those that a killed process has left; returns their figures."""
        # Not by `result_table.counted`: where nothing is observed it would keep the rows, which are kept here anyway.
        observes, seen = engine_of(self.session).observes, Observation()
        with self._settings():
            counted = keyed.observe(seen, *_figures(keyed)) if observes else keyed
            counted.write.options(**LARGE_ROWS).mode("overwrite").parquet(self._at("rows"))
        return _numbers(observed(seen)) if observes else self.figures(self.rows())

    def figures(self, keyed: DataFrame) -> dict[str, int]:
        """The figures of rows, without writing them."""
        with self._settings():
            return _numbers(keyed.agg(*_figures(keyed)).collect()[0].asDict())

    def rows(self) -> DataFrame:
        return self._load(self._at("rows"), self._row_schema())

    # Parts.

    def look_up(self, task: LookupTask) -> list[Event]:
        """Write the results that a store has; returns the events of the parts that they settle."""
        with self._settings():
            found = self._first_requests().mapInArrow(task, self._result_schema())
            self._results.add(found, REUSED, again=True)
        return self.recount()

    def form(self, task: FormTask, number: int, *, but_results: bool) -> list[Event]:
        """Write the requests of an attempt, about `number`, in parts; returns the "planned" events."""
        requests = self._first_requests() if task.attempt == 1 else self._asked_again(task.attempt - 1)
        if but_results:
            requests = self._without_result(requests)
        partitions = max(1, math.ceil(number / FILLED / task.work.service.max_requests))
        place = f"{self._at('parts')}/attempt={task.attempt}"
        with self._settings():
            parts = marked(requests.repartition(partitions)).mapInArrow(task, self._part_schema())
            parts.write.options(**LARGE_ROWS, **WHOLE).mode("overwrite").partitionBy("part").parquet(place)
        return self._planned(task.attempt, place)

    def divide(self, attempt: int, part: str, *, in_halves: bool) -> list[Event]:
        """Write the requests of a part that are apart, in pieces; returns the "planned" events of the pieces."""
        ended = self.results().where((sf.col("attempt") == attempt) & (sf.col("part") == part))
        ended = ended.where(sf.col("kind").isin("ok", "failed", "again")).select("key").distinct()
        rows = self._each_part(attempt, [part], self._part_schema().names).join(ended, "key", "left_anti")
        letter = sf.lit(REST)
        if in_halves:
            letter = sf.when(sf.ntile(2).over(Window.orderBy("key")) == 1, HALVES[0]).otherwise(HALVES[1])
        place = f"{self._at('pieces')}/attempt={attempt}/of={part}"
        named = rows.withColumn("part", sf.concat(sf.lit(part), letter)).select(*self._part_schema().names)
        with self._settings():
            named.write.options(**LARGE_ROWS, **WHOLE).mode("overwrite").partitionBy("part").parquet(place)
        return self._planned(attempt, place)

    def _planned(self, attempt: int, place: str) -> list[Event]:
        sums = [sf.count(sf.lit(1)).alias("requests"), sf.sum("weight").alias("weight"), *self._sum_of_costs("costs")]
        planned = self._load(place, self._part_schema()).groupBy("part").agg(*sums)
        return [
            Event(
                0.0, "", "planned", attempt, row["part"], requests=row["requests"], weight=row["weight"],
                costs=[row[f"cost{i}"] for i in range(self.budgets)],
            )
            for row in planned.collect()
        ]  # fmt: skip

    def send(self, parts: Sequence[str], task: SendTask) -> list[Event]:
        """Send parts as jobs, a task for each; returns the events, which are in the journal already."""
        wave = wave_name()
        frame = self._each_part(task.attempt, parts, ("part", "key", "body")).mapInArrow(task, LINES)
        with self._settings():
            frame.write.options(**AT_TASK_END).text(self.journal.place(wave))
        # All events in the files, not those of the tasks that Spark counts: a task lost after its end has sent, too.
        return self.journal.read_wave(wave)

    def poll(self, task: PollTask) -> list[Any]:
        numbers = self.session.range(0, len(task.jobs), 1, min(len(task.jobs), self.slots))
        return list(numbers.mapInArrow(task, STATES).collect())

    # Results.

    def settle(self, attempt: int, task: SettleTask) -> tuple[list[Event], list[tuple[str, str]]]:
        """Write the outcomes of the requests of parts, a task for each part.

        Returns the "settled" events, and the part and message of each trouble.
        """
        frame = self._each_part(attempt, list(task.over), ("part", "key", "arguments", "error"))
        wave = wave_name()
        settled = self._add_results(frame.mapInArrow(task, self._result_schema()), wave)
        error = sf.concat_ws(": ", "error.type", "error.message")
        trouble = sf.max(sf.when(sf.col("kind") == "trouble", error)).alias("trouble")
        counted = self._counted(settled, _rank("kind"), trouble)
        troubles = [(row["part"], row["trouble"]) for row in counted if row["trouble"] is not None]
        return [*self._settled(counted), *counted_events([wave])], troubles

    def result_waves(self) -> set[str]:
        """The waves of results in the state, also the waves that a killed process has left."""
        place, found = self._at("results"), list[str]()
        if hadoop := self._hadoop:
            found = hadoop.names(place)
        elif self._is_there("results"):
            # A write that failed has left a folder without rows, whose schema Spark cannot find out.
            found = read_files(self.session, place, "parquet", self._result_schema()).inputFiles()
        return set(re.findall(rf"(?:^|/){WAVE}=([^/]+)", "\n".join(found), re.MULTILINE))

    def recount(self) -> list[Event]:
        """The "settled" events of all parts that have results."""
        if not self._is_there("results"):
            return []
        # A request that was settled twice, or whose answer was read again, counts once.
        best = sf.min(sf.struct(_rank("kind"), "unparsed", "costs", "unsettled")).alias("best")
        each = self.results().where(sf.col("kind") != "trouble").groupBy("attempt", "part", "key").agg(best)
        return self._settled(self._counted(each.select("attempt", "part", "best.*"), sf.col("rank")))

    def reparse(self, task: ReparseTask) -> None:
        """Read answers again that could not be read."""
        schema = self._result_schema()
        unread = self.results().where(sf.col("unparsed") & sf.col("answer").isNotNull()).select(*schema.names)
        read = self._without_result(unread).select(*schema.names).mapInArrow(task, schema)
        self._add_results(read, wave_name())

    def example_of_unread(self) -> str:
        """Why an answer could not be read."""
        found = self.results().where("unparsed").select("error.type", "error.message").take(1)
        return f"{found[0]['type']}: {found[0]['message']}" if found else ""

    @property
    def _results(self) -> ResultTable:
        return ResultTable(self.session, self._at("results"), writing={**AT_TASK_END, **LARGE_ROWS})

    def results(self) -> DataFrame:
        schema = spark.StructType([*self._result_schema().fields, spark.StructField(WAVE, spark.StringType())])
        rows = self._results.rows(schema) if self._is_there("results") else None
        return self.session.createDataFrame([], schema) if rows is None else rows

    def final(self, kind: str) -> DataFrame:
        """The `value` and `error` of each request that is done, if its final kind is `kind`."""
        order = sf.struct(_rank("kind"), "attempt", "wave")
        ended = self.results().where(sf.col("kind").isin("ok", "failed")).groupBy("key")
        first = ended.agg(sf.min_by(sf.struct("kind", "value", "error"), order).alias("first"))
        return first.select("key", "first.*").where(sf.col("kind") == kind)

    def _counted(self, results: DataFrame, rank: Any, *more: Any) -> list[Any]:
        """The figures of each part."""
        kinds = [sf.count(sf.when(rank == place, 1)).alias(kind) for place, kind in enumerate(KINDS)]
        unparsed, number = sf.count(sf.when(sf.col("unparsed"), 1)), sf.count(sf.when(rank < len(KINDS), 1))
        unsettled = [sf.count("unsettled").alias("unsettled"), sf.max("unsettled").alias("text")]
        figures = [unparsed.alias("unparsed"), number.alias("requests"), *unsettled]
        sums = [*kinds, *figures, *self._sum_of_costs("costs"), *more]
        return list(results.groupBy("attempt", "part").agg(*sums).collect())

    def _settled(self, counted: Sequence[Any]) -> list[Event]:
        return [
            Event(
                0.0, "", "settled", costs=[row[f"cost{i}"] for i in range(self.budgets)],
                text=row["text"] or "",
                **{name: row[name] for name in ("attempt", "part", "requests", "unparsed", "unsettled", *KINDS)},
            )
            for row in counted
        ]  # fmt: skip

    # Requests: `key`, `arguments` and `error`, of the attempt before.

    def _first_requests(self) -> DataFrame:
        arguments = sf.struct(*(sf.col(f"c{i}").alias(f"a{place}") for place, i in enumerate(self.positions)))
        distinct = self.rows().select("key", arguments.alias("arguments")).dropDuplicates(["key"])
        return distinct.withColumn("error", sf.lit(None).cast(ERROR))

    def _asked_again(self, attempt: int) -> DataFrame:
        again = self.results().where((sf.col("kind") == "again") & (sf.col("attempt") == attempt))
        parts = self._load(f"{self._at('parts')}/attempt={attempt}", self._part_schema())
        return parts.select("key", "arguments").join(again.select("key", "error").dropDuplicates(["key"]), "key")

    def _without_result(self, frame: DataFrame) -> DataFrame:
        return frame.join(self.results().where(sf.col("kind") == "ok").select("key").distinct(), "key", "left_anti")

    def _place(self, attempt: int, part: str) -> str:
        """The parent of the folder of a part."""
        if part.endswith(PIECES):
            return f"{self._at('pieces')}/attempt={attempt}/of={part[:-1]}"
        return f"{self._at('parts')}/attempt={attempt}"

    def _each_part(self, attempt: int, parts: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """The rows of parts: a partition for each part."""
        schema = spark.StructType([field for field in self._part_schema().fields if field.name != "part"])
        frames = [
            self._load(f"{self._place(attempt, part)}/part={part}", schema)
            .withColumn("part", sf.lit(part))
            .select(*columns)
            .coalesce(1)
            for part in parts
        ]
        # Not by `DataFrame.union`: before Spark 4.0 the frames of Spark Connect have a class of their own.
        return functools.reduce(lambda one, other: one.union(other), frames)

    # Schemas.

    def _row_schema(self) -> spark.StructType:
        fields = {f"c{i}": field.dataType for i, field in enumerate(self.schema.fields)}
        return _struct({**fields, "key": "string"})

    def _part_schema(self) -> spark.StructType:
        arguments = {f"a{place}": self.schema.fields[i].dataType for place, i in enumerate(self.positions)}
        return _struct(
            {
                "part": "string", "key": "string", "arguments": _struct(arguments), "body": "string",
                "weight": "double", "costs": COSTS, "error": ERROR,
            }
        )  # fmt: skip

    def _result_schema(self) -> spark.StructType:
        return _struct(
            {
                "attempt": "integer", "part": "string", "key": "string", "kind": "string", "value": self.value,
                "error": ERROR, "unparsed": "boolean", "costs": COSTS, "answer": "string", "unsettled": "string",
            }
        )  # fmt: skip

    def _sum_of_costs(self, column: str) -> list[Any]:
        return [sf.sum(sf.get(column, sf.lit(i))).alias(f"cost{i}") for i in range(self.budgets)]

    # Reading and writing.

    def _at(self, table: str) -> str:
        return f"{self.path.rstrip('/')}/{table}"

    def _load(self, place: str, schema: spark.StructType) -> DataFrame:
        return read_files(self.session, place, "parquet", schema)

    def _add_results(self, frame: DataFrame, wave: str) -> DataFrame:
        """Add a wave of results; returns its rows as read from the state."""
        with self._settings():
            self._results.add(frame, wave)
        return self._results.wave(wave, self._result_schema())

    @property
    def _hadoop(self) -> HadoopFiles | None:
        return HadoopFiles.of(self.session, self.path)

    def _is_there(self, table: str) -> bool:
        if hadoop := self._hadoop:  # without it Spark logs a warning with a long trace
            return hadoop.is_there(self._at(table))
        try:
            files = read_files(self.session, self._at(table), "text")
            files.schema  # noqa: B018 - Spark looks only now
            return engine_of(self.session).misses_paths or bool(files.inputFiles())
        except Exception as error:
            if is_missing(error):
                return False
            raise

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Let Spark give each part a task of its own, and hand rows to Python in small batches.

        10,000 rows of a megabyte would not fit.
        """
        conf = self.session.conf
        before = {name: value for name in (BATCH_BYTES, BATCH_ROWS, UNION) if (value := setting(self.session, name))}
        most = {BATCH_BYTES: 2**24, BATCH_ROWS: 1_000 if BATCH_BYTES in before else 64}
        changed: dict[str, Any] = {
            name: most[name]
            for name, value in before.items()
            if name in most and (not value.isdecimal() or not 0 < int(value) <= most[name])
        }
        if before.get(UNION) == "true":
            changed[UNION] = "false"
        try:
            with contextlib.suppress(Exception):  # a session that lets nobody set anything
                for name, value in changed.items():
                    conf.set(name, value)
            yield
        finally:
            with contextlib.suppress(Exception):
                for name in changed:
                    conf.set(name, before[name])


def counted_events(waves: Iterable[str]) -> list[Event]:
    """Events that say that earlier events count the results of these waves."""
    return [Event(0.0, "", "counted", text=wave) for wave in sorted(waves)]


def _figures(keyed: DataFrame) -> list[Any]:
    # Without an order; of all columns that Spark hashes. A hash leaves NULLs out, and so in which columns they are.
    hashed = [
        field.name
        for field in keyed.schema.fields
        if not any(isinstance(one, (spark.MapType, VariantType)) for one in inside(field.dataType))
    ]
    nulls = sf.concat(*(sf.when(sf.col(name).isNull(), "1").otherwise("0") for name in keyed.schema.names))
    return [
        sf.count(sf.lit(1)).alias("rows"),
        sf.sum(sf.xxhash64(*hashed).cast("decimal(20,0)")).alias("fingerprint"),
        sf.sum(sf.xxhash64(nulls, *hashed).cast("decimal(20,0)")).alias("with_nulls"),
        sf.approx_count_distinct("key").alias("requests"),
    ]


def differ(figures: Mapping[str, int], known: Mapping[str, Any]) -> bool:
    """Whether these are the figures of other rows; those that an earlier version did not have do not count."""
    return any(known.get(name, figures[name]) != figures[name] for name in ("fingerprint", "with_nulls"))


def _numbers(figures: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value or 0) for name, value in figures.items()}


def _rank(kind: str) -> Any:
    ranks = (sf.when(sf.col(kind) == name, place) for place, name in enumerate(KINDS))
    return sf.coalesce(*ranks, sf.lit(len(KINDS))).alias("rank")


def _struct(fields: Mapping[str, Any]) -> spark.StructType:
    return functools.reduce(lambda struct, field: struct.add(*field), fields.items(), spark.StructType())
