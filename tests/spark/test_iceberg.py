"""Tables of Iceberg: how often a function is called for what is written, and lookup tables that lose nothing."""

import json

import pytest

from tests.kit.drivers import driver
from tests.kit.iceberg import settings

pytestmark = pytest.mark.spark

HEAD = """
import pathlib, tempfile
T = pathlib.Path(sys.argv[1])
made = SparkSession.builder.master("local[2]").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
spark = session(made.config(map=json.loads(sys.argv[2])))
VALUES = {
    "array<smallint>": [1, None],
    "map<string,tinyint>": {"a": 1},
    "struct<a:smallint,b:struct<c:tinyint>>": {"a": 1, "b": {"c": None}},
}
FILTER = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"

def function(name, returns="bigint", **options):
    async def called(id):
        with open(T / name, "a") as file:
            file.write("x")
        return VALUES.get(returns, 1)
    called.__name__ = called.__qualname__ = name
    return async_pandas_udf(called, returns, **options)

def calls(name):
    return (T / name).stat().st_size if (T / name).exists() else 0
"""
WRITES = """
MATCHED, NEW = "WHEN MATCHED THEN UPDATE SET p = s.p", "WHEN NOT MATCHED THEN INSERT *"
SOURCES = {
    "operator": lambda name: ordered_wait(source, function(name), "id", as_="p"),
    "column": lambda name: source.withColumn("p", function(name)("id")),
    "persisted": lambda name: ordered_wait(source, function(name), "id", as_="p").persist(),
    "stored": lambda name: ordered_wait(
        source, function(name, store=ResultStore.executor(), version=name), "id", as_="p"
    ),
    "column_of_two": lambda name: two_of_a_key.withColumn("p", function(name)("id")),
    "operator_of_two": lambda name: ordered_wait(two_of_a_key, function(name), "id", as_="p"),
    "deterministic": lambda name: source.withColumn("p", function(name, deterministic=True)("id")),
}
PARTITIONED = {"properties": "PARTITIONED BY (bucket(4, id))"}
MERGE_ON_READ = {"properties": "TBLPROPERTIES ('write.merge.mode'='merge-on-read')"}
source = spark.range(10, 30, 1, 2)
two_of_a_key = spark.range(10, 30, 1, 2).selectExpr("IF(id = 11, 10, id) AS id")

def table(name, properties="", ordered=""):
    spark.sql(f"CREATE TABLE ice.db.{name} (id bigint, p bigint) USING iceberg {properties}")
    spark.sql(f"INSERT INTO ice.db.{name} SELECT id, 0 FROM range(20)")
    if ordered:
        spark.sql(f"ALTER TABLE ice.db.{name} WRITE {ordered}")

def merged(name, clauses, on="t.id = s.id"):
    return lambda df: (
        df.createOrReplaceTempView("s"), spark.sql(f"MERGE INTO ice.db.{name} t USING s ON {on} {clauses}")
    )

def overwritten(name):
    return lambda df: (
        df.createOrReplaceTempView("s"), spark.sql(f"INSERT OVERWRITE ice.db.{name} SELECT id, p FROM s")
    )

def created(name):
    return lambda df: (
        df.createOrReplaceTempView("s"),
        spark.sql(f"CREATE TABLE ice.db.{name}_new USING iceberg AS SELECT * FROM s"),
    )

def without_filter(write):
    def run(df):
        spark.conf.set(FILTER, "false")
        write(df)
        spark.conf.unset(FILTER)
    return run

def case(name, source, write):
    error = ""
    try:
        write(SOURCES[source](name))
    except Exception as caught:
        said = {"INVALID_NON_DETERMINISTIC_EXPRESSIONS": "refused", "MERGE_CARDINALITY_VIOLATION": ""}
        error = next((word for condition, word in said.items() if condition in str(caught)), str(caught))
    found[name] = error or calls(name)

found = {}
for name, source_, made, write in [
    ("merge_column", "column", {}, lambda n: merged(n, MATCHED + " " + NEW)),
    ("merge_operator", "operator", {}, lambda n: merged(n, MATCHED + " " + NEW)),
    ("merge_persisted", "persisted", {}, lambda n: merged(n, MATCHED + " " + NEW)),
    ("merge_stored", "stored", {}, lambda n: merged(n, MATCHED + " " + NEW)),
    ("merge_unfiltered", "operator", {}, lambda n: without_filter(merged(n, MATCHED + " " + NEW))),
    ("merge_new", "operator", {}, lambda n: merged(n, NEW)),
    ("merge_new_column", "column", {}, lambda n: merged(n, NEW)),
    ("merge_deterministic", "deterministic", {}, lambda n: merged(n, MATCHED + " " + NEW)),
    ("merge_on_read", "column", MERGE_ON_READ, lambda n: merged(n, MATCHED + " " + NEW)),
    ("ordered_column", "column", {"ordered": "ORDERED BY id"}, lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("ordered_operator", "operator", {"ordered": "ORDERED BY id"},
     lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("ordered_stored", "stored", {"ordered": "ORDERED BY id"}, lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("ordered_locally", "column", {"ordered": "LOCALLY ORDERED BY id"},
     lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("ordered_merge_new", "operator", {"ordered": "ORDERED BY id"}, lambda n: merged(n, NEW)),
    ("ordered_merge_on_read", "column", {**MERGE_ON_READ, "ordered": "ORDERED BY id"},
     lambda n: merged(n, MATCHED + " " + NEW)),
    ("partitioned", "column", PARTITIONED, lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("ordered_in_partitions", "column", {**PARTITIONED, "ordered": "DISTRIBUTED BY PARTITION LOCALLY ORDERED BY id"},
     lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("ordered_none", "column", {"ordered": "ORDERED BY id", "properties": ""},
     lambda n: lambda d: (
         spark.sql(f"ALTER TABLE ice.db.{n} SET TBLPROPERTIES ('write.distribution-mode'='none')"),
         d.writeTo(f"ice.db.{n}").append())),
    ("appended", "column", {}, lambda n: lambda d: d.writeTo(f"ice.db.{n}").append()),
    ("overwritten", "column", {}, lambda n: overwritten(n)),
    ("overwritten_operator", "operator", {}, lambda n: overwritten(n)),
    ("created", "column", {}, lambda n: created(n)),
    ("created_operator", "operator", {}, lambda n: created(n)),
    ("key_twice", "column_of_two", MERGE_ON_READ, lambda n: merged(n, MATCHED)),
    ("key_twice_operator", "operator_of_two", {}, lambda n: merged(n, MATCHED)),
    ("on_result", "deterministic", {}, lambda n: merged(n, MATCHED + " " + NEW, "t.id = s.id AND t.p <> s.p")),
]:
    table(name, **made)
    case(name, source_, write(name))
tell(json.dumps(found))
spark.stop()
"""
WRITTEN = {  # how many calls for 20 rows, and warnings
    "merge_column": ("refused", 0),
    "merge_operator": (40, 1),
    "merge_persisted": (20, 0),
    "merge_stored": (20, 0),
    "merge_unfiltered": (20, 0),
    "merge_new": (20, 0),
    "merge_new_column": (20, 0),
    "merge_deterministic": (20, 0),
    "merge_on_read": (20, 0),
    "ordered_column": (40, 1),
    "ordered_operator": (40, 1),
    "ordered_stored": (20, 0),
    "ordered_locally": (40, 1),
    "ordered_merge_new": (40, 1),
    "ordered_merge_on_read": (20, 0),
    "partitioned": (20, 0),
    "ordered_in_partitions": (20, 0),
    "ordered_none": (20, 0),
    "appended": (20, 0),
    "overwritten": (20, 0),
    "overwritten_operator": (20, 0),
    "created": (20, 0),
    "created_operator": (20, 0),
    "key_twice": (20, 0),
    "key_twice_operator": (40, 1),
    "on_result": (60, 1),
}


def run(program: str, tmp_path) -> tuple[dict, str]:
    log = tmp_path / "log"
    given = json.dumps(settings(tmp_path))
    with log.open("w") as stderr, driver(HEAD + program, tmp_path, given, stderr=stderr) as started:
        printed, _ = started.communicate()
    assert printed, log.read_text()
    return json.loads(printed), log.read_text()


def test_what_is_written_calls_as_often_as_the_page_says(tmp_path):
    calls, log = run(WRITES, tmp_path)
    told = {name: log.count(f".{name}: Spark evaluates the same rows a second time") for name in calls}
    assert {name: (calls[name], told[name]) for name in calls} == WRITTEN


LOOKUPS = """
def update(table, df):
    done = table.update(df, progress=False)
    return [done.called, done.reused, done.failed]

def error(action):
    try:
        action()
    except Exception as caught:
        return f"{type(caught).__name__}: {caught}"

found = {}
nulls = spark.sql("SELECT id FROM range(3, 13) UNION ALL SELECT CAST(NULL AS BIGINT)")
table = LookupTable(spark, "ice.db.nulls", function("nulls"), "id", format="iceberg")
found["nulls"] = [update(table, spark.range(3)), update(table, nulls), update(table, nulls), table.to_df().count()]

TYPES = ("tinyint", "smallint", "array<smallint>", "map<string,tinyint>", "struct<a:smallint,b:struct<c:tinyint>>")
for number, type_ in enumerate(TYPES):
    table = LookupTable(spark, f"ice.db.kept{number}", function(f"kept{number}", type_), "id", format="iceberg")
    done = [update(table, spark.range(3)), update(table, spark.range(4))]
    found[type_] = [*done, ",".join(f.dataType.simpleString() for f in table.join(spark.range(3)).schema[1:])]

small = spark.range(3).selectExpr("CAST(id AS smallint) AS id")
table = LookupTable(spark, "ice.db.small_keys", function("small_keys"), "id", format="iceberg")
found["small keys"] = [update(table, small), update(table, small), table.join(small).count()]
found["other keys"] = error(lambda: table.update(spark.range(3), progress=False))

table = LookupTable(spark, "ice.db.ordered", function("ordered"), "id", format="iceberg")
update(table, spark.range(3))
spark.sql("ALTER TABLE ice.db.ordered WRITE ORDERED BY called_at")
found["ordered"] = [update(table, spark.range(30)), calls("ordered")]

spark.sql("CREATE TABLE ice.db.old AS SELECT * FROM ice.db.nulls WHERE false")
spark.sql("ALTER TABLE ice.db.old DROP COLUMN arguments")
spark.sql("DROP TABLE ice.db.old")
columns = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in spark.table("ice.db.nulls").schema.fields)
spark.sql(f"CREATE TABLE ice.db.old ({columns}) USING iceberg".replace("id:bigint", "id: bigint NOT NULL", 1))
table = LookupTable(spark, "ice.db.old", function("old"), "id", format="iceberg")
found["old"] = [update(table, spark.range(3)), error(lambda: table.update(nulls, progress=False)), calls("old")]
spark.sql("ALTER TABLE ice.db.old ALTER COLUMN arguments.id DROP NOT NULL")
found["old"].append(update(table, nulls))

interval = LookupTable(spark, "ice.db.no", function("no", "interval day to second"), "id", format="iceberg")
found["interval"] = [error(lambda: interval.update(spark.range(3))), calls("no")]
found["interval"].append(spark.catalog.tableExists("ice.db.no"))
for where in (f"{T}/nothing", f"file:{T}/nothing"):
    path = LookupTable(spark, where, function("path"), "id", format="iceberg")
    for use in (lambda: path.update(spark.range(3)), path.to_df, lambda: path.join(spark.range(3))):
        found.setdefault("path", []).append(error(use))
found["path"].append(calls("path"))
path = LookupTable(spark, f"{T}/ice/db/nulls", function("nulls"), "id", format="iceberg")
found["known path"] = [update(path, nulls), update(path, spark.range(20, 22)), path.to_df().count()]
tell(json.dumps(found))
spark.stop()
"""


def test_a_lookup_table_loses_nothing(tmp_path):
    """A NULL did not fit into a table that was made without one, and the wave it came with was lost."""
    found, _ = run(LOOKUPS, tmp_path)
    no_such_keys, no_null = found.pop("other keys"), found["old"].pop(1)
    no_interval, *no_paths = found["interval"].pop(0), *found["path"][:-1]
    types = ("tinyint", "smallint", "array<smallint>", "map<string,tinyint>", "struct<a:smallint,b:struct<c:tinyint>>")
    assert found == {
        "nulls": [[3, 0, 0], [11, 0, 0], [0, 11, 0], 14],
        **{name: [[3, 0, 0], [1, 3, 0], name] for name in types[:-1]},
        types[-1]: [[3, 0, 0], [1, 3, 0], "smallint,struct<c:tinyint>"],
        "small keys": [[3, 0, 0], [0, 3, 0], 3],
        "ordered": [[27, 3, 0], 30],
        "old": [[3, 0, 0], 3, [11, 0, 0]],
        "interval": [0, False],
        "path": [*no_paths, 0],
        "known path": [[0, 11, 0], [2, 0, 0], 16],
    }
    assert no_such_keys.startswith("FunctionError: ice.db.small_keys has arguments of the type struct<id:int>, not")
    assert no_null.startswith("FunctionError: column 'id' has a NULL, and ice.db.old takes none there")
    assert no_null.endswith("ALTER TABLE ice.db.old ALTER COLUMN arguments.id DROP NOT NULL")
    assert no_interval.startswith("FunctionError: iceberg cannot keep ice.db.no with arguments of")
    assert "Not a supported type: interval day to second" in no_interval
    assert len(no_paths) == 6
    assert all(one.startswith("OptionError: there is no table of iceberg at") for one in no_paths)
