"""The calls that a query makes lie between the bounds that its dry run tells, in plans of all shapes."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import pytest
from pyspark.sql import functions as sf

from asyncudf import AsyncStream, ResultStore, async_pandas_udf, dry_run, ordered_wait, unordered_wait

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("adaptive")]


class Query(NamedTuple):
    """Made of the table `t` with 100 rows, and f. `calls`: told exactly. `no_most`: why there is no upper bound."""

    build: Callable[[Any, Any], Any]
    calls: int | None = None
    no_most: str | None = None
    conf: dict[str, str] = {}


def sql(text, **known):
    return Query(lambda t, f: t.sparkSession.sql(text), **known)


def results(t, f):
    return t.select("id", f("id").alias("r"))


def sequence_id():
    """An expression that makes a node of its own, which nobody knows."""
    internal = pytest.importorskip("pyspark.sql.internal", reason="Spark 4.0 has it")
    return internal.InternalFunction.distributed_sequence_id()


def recursive(t, start="SELECT 0L"):
    if t.sparkSession.version < "4.1":
        pytest.skip("recursive queries need Spark 4.1")
    return t.sparkSession.sql(
        f"WITH RECURSIVE r(n) AS ({start} UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT * FROM r"
    )


def few(t):
    return t.where("id < 30")


def grouped(t):
    return t.groupBy((sf.col("id") % 50).alias("id")).agg(sf.count("id").alias("n"))


def nothing(t):
    return t.where("id % 7 = 8")


def stops_early(batches):
    for batch in batches:
        yield batch.slice(0, 1)
        return


CTE = "WITH c AS (SELECT id, f(id) r FROM t) "
COPIED = "WITH c AS (SELECT id, copied(id) r FROM t) "  # a function with deterministic=True
PLAIN = {"spark.sql.adaptive.enabled": "false"}
SHUFFLED = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
# Planned with shuffles, and planned anew with a broadcast when the query has seen how small a side is.
REPLANNED = {**SHUFFLED, "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB"}

QUERIES = {
    "no function": Query(lambda t, f: t, 0),
    "a result that nobody reads": Query(lambda t, f: results(t, f).select("id"), 0),
    "rows of Python": Query(lambda t, f: t.sparkSession.createDataFrame([(1,), (2,)], "id int").select(f("id")), 2),
    "a case, which is evaluated for each row": sql("SELECT CASE WHEN id < 3 THEN f(id) END FROM t", calls=100),
    "a function of SQL around it, named twice": sql("SELECT around(id), around(id) + 1 FROM t", calls=200),
    "one in the other, sorted": sql("SELECT g(g(id)) x FROM t ORDER BY x", calls=400),
    "a function of others around it, in one node": sql("SELECT others(g(id)) FROM t", calls=100),
    "in a filter and a case": sql("SELECT CASE WHEN g(id) > 5 THEN 1 ELSE 2 END FROM t WHERE f(id).b > 3"),
    "a recursive query that calls": Query(
        lambda t, f: recursive(t, "SELECT max(r.a) FROM (SELECT f(id) r FROM t) c"),
        no_most="hidden",
    ),
    "a filter above": Query(lambda t, f: results(t, f).where("r.b = 3"), 100),
    "an aggregate above": Query(lambda t, f: results(t, f).groupBy("r.b").count(), 100),
    "a join above": Query(lambda t, f: results(t, f).join(few(t), "id"), 100),
    "a filter above, copied": sql(COPIED + "SELECT r.a FROM c WHERE r.b > 3"),
    "a filter between two": Query(lambda t, f: results(t, f).where("r.b < 3").select(f("r.a"))),
    "NULL makes no call": Query(
        lambda t, f: t.selectExpr("IF(id % 3 = 0, NULL, id) AS id").select(f.with_options(on_null_input="null")("id"))
    ),
    "an aggregate between two": Query(
        lambda t, f: results(t, f).groupBy("r.b").agg(sf.max("id").alias("m")).select(f("m"))
    ),
    "an explode between two": Query(
        lambda t, f: results(few(t), f).select(sf.explode(sf.sequence(sf.lit(1), "r.b")).alias("k")).select(f("k")),
        no_most="results",
    ),
    "a sort": Query(lambda t, f: results(t, f).orderBy("r.a"), 200),
    "a sort of a skewed partition": Query(
        lambda t, f: results(
            t.sparkSession.range(0, 2_600, 1, 1).repartitionByRange(8, sf.expr("IF(id < 2500, 0, id)")), f
        ).orderBy("r.a"),
        conf={**PLAIN, "spark.sql.execution.rangeExchange.sampleSizePerPartition": "5"},
    ),
    "a shuffle between it and a sort": Query(lambda t, f: results(t, f).repartition(3).orderBy("r.a"), 100),
    "the first rows of a sort": Query(lambda t, f: results(t, f).orderBy("r.a").limit(3), 100),
    "a limit": Query(lambda t, f: results(t, f).limit(5)),
    "a limit below": Query(lambda t, f: results(t.limit(7), f), 7),
    "a limit of an operator": Query(lambda t, f: ordered_wait(t, f, "id", capacity=2, queue_size=2).limit(5)),
    "a limit between two": Query(lambda t, f: results(t, f).limit(5).select(f("r.a"))),
    "a function of others that stops early": Query(
        lambda t, f: results(t, f).mapInArrow(stops_early, "id long, r struct<a int, b int>")
    ),
    "an operator that is not known": Query(lambda t, f: results(t, f).select(sequence_id(), "r"), no_most="unknown"),
    "a sample with replacement": Query(
        lambda t, f: results(few(t), f).sample(True, 4.0, seed=3).select(f("r.a")), no_most="results"
    ),
    "an exists": sql(
        "SELECT id FROM t WHERE id < 3 OR EXISTS (SELECT 1 FROM v WHERE v.id = t.id AND v.r.b = 3)", calls=100
    ),
    "a union of one DataFrame": Query(lambda t, f: (lambda r: r.union(r))(results(t, f)), 200),
    "a join with nothing": Query(lambda t, f: results(t, f).join(t.where("id % 7 = 8"), "id"), conf=SHUFFLED),
    "a join in the stage of the function": Query(
        lambda t, f: results(t.repartition("id"), f).join(t.where("id = 3"), "id"), conf=SHUFFLED
    ),
    "an anti join that a NULL empties": sql("SELECT * FROM v WHERE id NOT IN (SELECT IF(id = 3, NULL, id) FROM t)"),
    "an anti join without a condition": sql("SELECT * FROM v WHERE NOT EXISTS (SELECT 1 FROM t WHERE id % 7 = 3)"),
    "an outer join of nothing": Query(lambda t, f: nothing(t).join(results(t, f), "id", "left"), conf=SHUFFLED),
    "an outer join with nothing, shuffled": Query(
        lambda t, f: results(t, f).join(nothing(t), "id", "full"), 100, conf=SHUFFLED
    ),
    "a join planned anew, sorted": Query(
        lambda t, f: results(grouped(t), f).join(few(t), "id").orderBy("r.a"), conf=REPLANNED
    ),
    "between two joins planned anew, sorted": Query(
        lambda t, f: results(t.join(few(t), "id"), f).join(grouped(t), "id").orderBy("r.a"), conf=REPLANNED
    ),
    "a join on the result": Query(lambda t, f: t.selectExpr("id AS k").join(results(t, f), sf.expr("k = r.b"))),
    "a join between two": Query(lambda t, f: results(t, f).join(few(t), "id").select(f("r.a")), no_most="results"),
    "a product": Query(lambda t, f: results(t, f).hint("shuffle_replicate_nl").crossJoin(few(t))),
    "an outer join without an equality": sql(CTE + "SELECT * FROM c FULL JOIN range(5) k ON c.id < k.id", calls=200),
    "a CTE joined with itself, copied": sql(COPIED + "SELECT y.id FROM c x JOIN c y ON x.id = y.r.a WHERE x.r.b < 2"),
    "a CTE joined with itself, copied and shuffled": sql(
        COPIED + "SELECT * FROM c x LEFT JOIN c y ON x.id = y.r.a + 1", conf=SHUFFLED
    ),
    "a subquery": sql(CTE + "SELECT * FROM t WHERE id < (SELECT max(r.a) FROM c WHERE id < 20)", calls=100),
    "a subquery used twice": sql(
        "WITH m AS (SELECT max(r.a) x FROM (SELECT f(id) r FROM t)) "
        "SELECT id FROM t WHERE id < (SELECT x FROM m) UNION ALL SELECT id FROM t WHERE id > (SELECT x FROM m)",
        calls=100,
    ),
    "a partition pruned by a join": sql("SELECT f(p.id) FROM parts p JOIN t ON p.k = t.id WHERE t.id < 2"),
    "a partition pruned by results": sql(COPIED + "SELECT p.id FROM parts p JOIN c ON p.k = c.id WHERE c.r.b = 2"),
    "an operator, filtered and counted": Query(
        lambda t, f: unordered_wait(t, f, "id").where("a > 3").groupBy().count(), 100
    ),
    "an operator, sorted": Query(lambda t, f: ordered_wait(t, f, "id").orderBy("a"), 200),
    "two operators": Query(lambda t, f: ordered_wait(ordered_wait(t, f, "id"), f, "a", as_="again"), 200),
    "a chain": Query(lambda t, f: AsyncStream(t).ordered_wait(f).unordered_wait(f, "a", as_="x").to_df(), 200),
    "a chain with a filter": Query(
        lambda t, f: AsyncStream(t).filter(lambda row: row["id"] < 7).ordered_wait(f).to_df()
    ),
    "a chain that makes rows": Query(
        lambda t, f: AsyncStream(t).flat_map(lambda row: [row, row], "id long").ordered_wait(f).to_df(),
        no_most="operators",
    ),
    "a store, sorted and named twice": Query(
        lambda t, f: (lambda g: t.select(g("id").alias("x"), g("id").alias("y")).orderBy("x.a"))(
            f.with_options(store=ResultStore.executor(), version="sorted")
        )
    ),
    "rows of df.rdd": Query(
        lambda t, f: (lambda r: r.rdd.toDF(r.schema))(results(t, f)).select(f("id")), no_most="hidden"
    ),
}


@pytest.fixture(scope="module")
def parts(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("parts") / "table")
    spark.range(40).selectExpr("id", "id % 4 AS k").write.partitionBy("k").parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("parts")


@pytest.fixture
def function(spark, journal, parts):
    spark.range(0, 100, 1, 2).createOrReplaceTempView("t")

    @async_pandas_udf("a int, b int")
    async def f(id: int):
        journal.write("called", id)
        return {"a": id, "b": id % 10}

    @async_pandas_udf(deterministic=True)
    async def g(id: int) -> int:
        journal.write("called", id)
        return id

    @sf.pandas_udf("long")
    def others(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        yield from batches

    spark.udf.register("f", f)
    spark.udf.register("copied", f.with_options(deterministic=True))
    f.with_options(output_mode="unordered").register(spark, "rows_of_f")
    spark.udf.register("g", g)
    spark.udf.register("others", others)
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT id, f(id) r FROM t")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION around(x BIGINT) RETURNS INT RETURN f(x).a")
    return f


@pytest.mark.parametrize("name", QUERIES)
def test_the_calls_made_lie_between_the_bounds(spark, conf, journal, function, name):
    query = QUERIES[name]
    for option, value in query.conf.items():
        conf(option, value)
    df = query.build(spark.table("t"), function)
    told = dry_run(df)
    assert len(journal) == 0, "the dry run has called the function"
    df.collect()
    made = len(journal)
    assert told.calls.at_least <= made, str(told)
    if query.no_most is not None:
        assert told.calls.at_most is None
        assert told.is_hidden or any(query.no_most in mention.reasons for mention in told.mentions)
    else:
        assert made <= told.calls.at_most, str(told)
    if (expected := told.calls.expected) is not None:
        assert expected.at_least <= made <= 2 * expected.at_most, "two tasks may miss the same result"
    if query.calls is not None:
        assert (told.calls.at_least, told.calls.at_most, made) == (query.calls,) * 3, str(told)
    elif query.no_most is None:
        assert told.calls.is_exact or any(mention.reasons for mention in told.mentions), "bounds have reasons"
    assert (made > 0) <= bool(told.mentions or told.is_hidden)
