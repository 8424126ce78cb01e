"""Rows that Spark evaluates twice are paid twice: each way is told of once, and nothing else is."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pytest

from asyncudf._spark.second_evaluations import RECORD, USES, Evaluation, _digest, _samples
from tests.kit.drivers import driver

pytestmark = pytest.mark.spark

ROWS = 20
# By a form and a way: how many calls for 20 rows, and how many warnings. `f` makes the frame, with a result `p`.
WAYS = {
    "one_action": ("f.collect()", 20, 0),
    "two_actions": ("f.collect(); f.collect(); f.collect()", 60, 1),
    "persisted": ("f.persist(); f.collect(); f.collect()", 20, 0),
    "persisted_late": ("f.collect(); f.select('*').persist(); f.select('*').collect(); f.select('*').collect()", 40, 1),
    "sorted_by": ("f.orderBy('p').collect()", 40, 1),
    "shuffled_before": ("f.repartition(2).orderBy('p').collect()", 20, 0),
    "joined": ("f.join(f.withColumnRenamed('p', 'q'), 'id').collect()", 40, 1),
    "view_merged": ("f.createOrReplaceTempView('v'); spark.sql(JOIN.format('MERGE')).collect()", 20, 0),
    "view_broadcast": ("f.createOrReplaceTempView('v'); spark.sql(JOIN.format('BROADCAST')).collect()", 40, 1),
    "numbered": ("f.rdd.zipWithIndex().collect()", 40, 1),
    "checkpointed": ("f.localCheckpoint().collect()", 20, 0),
    "failed_and_again": ("failed(f.collect); f.collect()", 20, 0),
    "tried_again": ("", 20, 0),
    "two_frames": ("f.collect(); g.collect()", 40, 0),
}
PROGRAM = """
import pathlib, tempfile
from collections import Counter
from pyspark import TaskContext
from pyspark.sql import functions as sf

spark = SparkSession.builder.master("local[2,2]").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
spark = session(spark)
T = pathlib.Path(tempfile.mkdtemp())

JOIN = "SELECT /*+ {}(w) */ * FROM v JOIN v w USING (id)"

def failed(action):
    spark.sparkContext.setLocalProperty("fails", "yes")  # of the tasks that still run when the job has failed, too
    try:
        action()
    except Exception:
        spark.sparkContext.setLocalProperty("fails", None)
        return
    raise AssertionError("it has not failed")

def function(name, **options):
    async def priced(id: int) -> int:
        task = TaskContext.get()
        is_first = task.attemptNumber() == 0
        if task.getLocalProperty("fails") or (name.startswith("tried_again") and is_first):
            raise SystemExit(3)  # fails the task under every policy
        with open(T / name, "a") as file:
            file.write("x")
        return id * 2
    priced.__name__ = priced.__qualname__ = name
    return async_pandas_udf(priced, "bigint", **options)

def calls(name):
    return (T / name).stat().st_size if (T / name).exists() else 0

def source(begin=0):
    return spark.range(begin, begin + 20, 1, 2)

told = {}
for name, (way, _, _) in json.loads(sys.argv[1]).items():
    operator, column, sql = (function(f"{name}_{form}") for form in ("operator", "column", "sql"))
    spark.udf.register("priced", sql)
    made = column("id")
    source().createOrReplaceTempView("few"), source(100).createOrReplaceTempView("more")
    forms = {
        "operator": lambda begin: ordered_wait(source(begin), operator, "id", as_="p"),
        "column": lambda begin: source(begin).withColumn("p", made),
        "sql": lambda begin: spark.sql(f"SELECT id, priced(id) AS p FROM {'more' if begin else 'few'}"),
    }
    for form, frame in forms.items():
        f, g = frame(0), frame(100)
        exec(way or "f.collect()")
        told[f"{name}_{form}"] = calls(f"{name}_{form}")

stored = function("stored", store=ResultStore.executor(), version="1")
ordered_wait(source(), stored, "id", as_="p").orderBy("p").collect()
ordered_wait(ordered_wait(source(), stored, "id", as_="p"), function("beside"), "id", as_="q").orderBy("q").collect()
union = ordered_wait(source(), function("union"), "id", as_="p")
union.union(union).collect()
same = spark.createDataFrame([(1,)] * 20, "id long").repartition(4)
ordered_wait(same, function("same_rows"), "id", as_="p").collect()
few = spark.sparkContext.parallelize(range(6), 6).flatMap(lambda number: [(number // 3,)] * 20).toDF("id long")
ordered_wait(few, function("few_kinds"), "id", as_="p").collect()
alike = function("alike")("id")
for rows in (80, 90):
    spark.range(0, rows, 1, 1).selectExpr("id % 2 AS id").withColumn("p", alike).collect()
told |= {name: calls(name) for name in ("stored", "beside", "union", "same_rows", "few_kinds", "alike")}

def twice(batch, number):
    ordered_wait(batch, function("twice_a_batch"), "id", as_="p").createOrReplaceGlobalTempView("batch")
    frame = spark.table("global_temp.batch")
    frame.collect(), frame.collect()

def once(batch, number):
    batch.collect()

def run_stream(to_frame, each):
    lines = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(T / "in"))
    to_frame(lines).writeStream.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()

for start in (0, 100):
    source(start).coalesce(1).write.mode("append").parquet(str(T / "in"))
run_stream(lambda df: df, twice)
run_stream(lambda df: ordered_wait(df, function("in_stream"), "id", as_="p"), once)
run_stream(lambda df: ordered_wait(df, function("stream_twice"), "id", as_="p"), lambda b, n: (once(b, n), once(b, n)))
beside, persisted = (ordered_wait(source(), function(name), "id", as_="p") for name in ("joined_by", "persisted_by"))
persisted.persist()
for static in (beside, persisted):
    run_stream(lambda df: df.join(static, "id"), once)
streams = ("twice_a_batch", "in_stream", "stream_twice", "joined_by", "persisted_by")
told |= {name: calls(name) for name in streams}
tell(json.dumps(told))
spark.stop()
"""
ALONE = {
    "stored": (20, 0),
    "beside": (40, 1),  # beside a function with a store
    "union": (40, 1),
    "same_rows": (20, 0),  # in each of four partitions
    "few_kinds": (120, 0),  # partitions of one kind, then of another
    "alike": (170, 0),  # two frames that begin with the same rows
    "twice_a_batch": (80, 2),  # a frame for each batch
    "in_stream": (40, 0),  # one frame for all batches
    "stream_twice": (80, 1),
    "joined_by": (40, 0),  # a stream, once in each batch
    "persisted_by": (20, 0),
}


def test_what_is_evaluated_twice_is_told_once_with_the_ways_out(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as stderr, driver(PROGRAM, json.dumps(WAYS), stderr=stderr) as started:
        printed, _ = started.communicate()
    assert printed, log.read_text()
    text, calls = log.read_text(), json.loads(printed)
    expected = {f"{way}_{form}": WAYS[way][1:] for way in WAYS for form in ("operator", "column", "sql")} | ALONE
    found = {name: (calls[name], text.count(f".{name}: Spark evaluates the same rows a second time")) for name in calls}
    assert found == expected
    for remedy in ("store=", "persist()", "write.distribution-mode=none", "rowLevelOperationGroupFilter.enabled=false"):
        assert remedy in text


def evaluation(file: Path, partition: int = 0, batch: bytes = b"12345678") -> Evaluation:
    return Evaluation(file, "f", partition, 0, bytes(8), batch, is_frame=True)


def test_a_stream_with_a_dataframe_for_each_batch_leaves_a_bounded_number_of_files(tmp_path):
    for number in range(USES + 20):
        evaluation(tmp_path / str(number)).ended()
    assert len(list(tmp_path.iterdir())) == USES
    assert (tmp_path / str(USES + 19)).exists()


def test_a_record_that_a_full_disk_has_cut_fails_no_task(tmp_path, caplog):
    file = tmp_path / "use"
    file.write_bytes(bytes(2 * RECORD.size + 5))
    evaluation(file).ended()
    again = dataclasses.replace(evaluation(file, partition=2), stage=1)
    again.warn()
    again.ended()
    assert not caplog.records


def test_wide_rows_are_not_copied_as_a_whole():
    batch = pa.RecordBatch.from_pydict({"image": [bytes([number]) * 1_000_000 for number in range(20)]})
    assert sum(map(len, map(bytes, _samples(batch)))) < 3_000_000
    assert _digest(*_samples(batch)) != _digest(*_samples(batch.slice(0, 19)))
