"""Where a LookupTable is: any path, a name that the catalog forgets, a place that is somebody else's."""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from asyncudf import LookupTable
from tests.kit.lookup_tables import cities, update
from tests.kit.spark_functions import length

pytestmark = pytest.mark.spark


@pytest.fixture
def name(spark, warehouse):
    yield "lookup_lengths"
    spark.sql("DROP TABLE IF EXISTS lookup_lengths")
    shutil.rmtree(warehouse / "lookup_lengths", ignore_errors=True)


@pytest.fixture
def warehouse(spark):
    return Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))


def forget(spark, name, folder):
    """What the end of a session does to a table, where only Spark's memory knows of it."""
    shutil.copytree(folder, f"{folder}_kept")
    spark.sql(f"DROP TABLE {name}")
    shutil.move(f"{folder}_kept", folder)


def test_a_table_of_the_catalog(spark, name, warehouse, journal):
    """It keeps its format whichever way it is named, and what the catalog has forgotten is not paid for again.

    A join gave NULLs then, and an update called for everything before it failed to write. Each wave changes the table,
    for which Spark drops what it keeps of it: `df` is read once all the same.
    """

    async def noted(city: str) -> int:
        journal.write("call", city)
        return len(city)

    def read(batches):
        journal.write("read")
        yield from batches

    df = cities(spark, "Oslo", "Paris", "Rome")
    source = df.coalesce(1).mapInArrow(read, df.schema)
    assert update(LookupTable(spark, name, noted, format="orc", wave=2), source) == (3, 0, 0)
    assert journal.lines.count("read") == 1
    table = LookupTable(spark, f"default.`{name.upper()}`", noted)
    assert update(table, cities(spark, "Oslo", "Bonn")) == (1, 1, 0)
    assert spark.table(name).count() == 4
    assert sorted(table.join(df).collect()) == [("Oslo", 4), ("Paris", 5), ("Rome", 4)]
    forget(spark, name, warehouse / name)
    table = LookupTable(spark, name, noted)
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        table.join(df)
    with pytest.raises(PySparkException, match="LOCATION_ALREADY_EXISTS"):
        update(table, df)
    assert len(journal) == 5


def test_a_table_is_made_with_any_names(spark, name):
    table = LookupTable(spark, name, length)
    table._make(spark.createDataFrame([], "`a.b ``c``` array<map<string,struct<`d e`:int>>>").schema)
    assert spark.table(name).select("arguments.*").columns == ["a.b `c`"]
    assert spark.table(name).count() == 0


@pytest.mark.parametrize(
    ("format", "key", "message"),
    [
        ("orc", "NULL", "UNSUPPORTED_DATA_TYPE"),
        ("orc", "make_ym_interval(1, 2)", "which pyarrow does not know"),
        ("image", "'Oslo'", "Write is not supported"),  # Spark makes such a table
    ],
)
def test_a_table_that_cannot_take_the_rows_is_not_left_behind(spark, name, journal, format, key, message):  # noqa: A002
    async def noted(city):
        journal.write("call", city)
        return 1

    table = LookupTable(spark, name, noted, returnType="int", format=format)
    with pytest.raises(Exception, match=message):
        update(table, spark.range(3).selectExpr(f"{key} AS city"))
    assert not spark.catalog.tableExists(name)
    assert len(journal) == 0


def test_files_are_read_in_the_format_that_is_named(spark, tmp_path):
    where = str(tmp_path / "t")
    update(LookupTable(spark, where, length, format="orc"), cities(spark, "Oslo"))
    table = LookupTable(spark, where, length)
    for use in (table.to_df, lambda: table.join(cities(spark, "a")), lambda: update(table, cities(spark, "a"))):
        with pytest.raises(Exception, match=r"is not a Parquet file|CANNOT_READ_FILE_FOOTER|could not read footer"):
            use()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("lookup_view", {}, "lookup_view is not a table of a LookupTable: it has no column"),
        ("nowhere.t", {}, "SCHEMA_NOT_FOUND"),
        ("my-table", {}, "INVALID_IDENTIFIER"),
        ("`my-table`", {}, "is not a valid name"),
        ("lookup_delta", {"format": "delta"}, "DATA_SOURCE_NOT_FOUND"),
        ("./t", {"format": "delta"}, "DATA_SOURCE_NOT_FOUND"),
    ],
)
def test_what_is_no_table_is_told_before_anything_is_called(
    spark, monkeypatch, tmp_path, journal, table, options, message
):
    async def noted(city: str) -> int:
        journal.write("call", city)
        return 1

    monkeypatch.chdir(tmp_path)
    spark.range(1).createOrReplaceTempView("lookup_view")
    with pytest.raises(Exception, match=message):
        update(LookupTable(spark, table, noted, **options), cities(spark, "Oslo"))
    assert len(journal) == 0
