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


def test_a_path_is_taken_to_the_letter(spark, tmp_path):
    """Spark reads `run[1]` as a pattern, found nothing there, and each update called for everything again."""
    table = LookupTable(spark, str(tmp_path / "run[1] {a,b} *?\\d at 12:30" / "t:*"), length)
    assert update(table, cities(spark, "Oslo")) == (1, 0, 0)
    assert update(table, cities(spark, "Oslo")) == (0, 1, 0)


def forget(spark, name, folder):
    """What the end of a session does to a table, where only Spark's memory knows of it."""
    shutil.copytree(folder, f"{folder}_kept")
    spark.sql(f"DROP TABLE {name}")
    shutil.move(f"{folder}_kept", folder)


def test_files_of_a_table_that_the_catalog_has_forgotten_are_not_paid_for_again(spark, name, warehouse, journal):
    """A join gave NULLs, and an update called for everything before it failed to write."""

    async def noted(city: str) -> int:
        journal.write("call", city)
        return len(city)

    df = cities(spark, "Oslo", "Paris")
    update(LookupTable(spark, name, noted), df)
    forget(spark, name, warehouse / name)
    table = LookupTable(spark, name, noted)
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        table.join(df)
    with pytest.raises(PySparkException, match="LOCATION_ALREADY_EXISTS"):
        update(table, df)
    assert len(journal) == 2


def test_what_a_killed_update_leaves_behind_is_not_minded(spark, tmp_path):
    """It may be all that there is."""
    table = LookupTable(spark, str(tmp_path / "t"), length)
    for wave, reused in [("a", 0), ("b", 1)]:
        left = tmp_path / "t" / f"wave={wave}" / "_temporary" / "0" / "_temporary"
        left.mkdir(parents=True)
        (left / "part-0.parquet").write_bytes(b"PAR1 torn")
        assert update(table, cities(spark, "Oslo")) == (1 - reused, reused, 0)
        assert left.exists()
    assert table.to_df().count() == 1


def test_a_table_is_made_without_a_job(spark, name, no_job):
    table = LookupTable(spark, name, length)._table
    with no_job:
        table._make(spark.createDataFrame([], "`a.b ``c``` array<map<string,struct<`d e`:int>>>").schema)
    assert spark.table(name).select("arguments.*").columns == ["a.b `c`"]


def test_a_table_keeps_its_format_whichever_way_it_is_named(spark, name, tmp_path):
    assert update(LookupTable(spark, name, length, format="orc"), cities(spark, "Oslo")) == (1, 0, 0)
    assert update(LookupTable(spark, f"default.`{name.upper()}`", length), cities(spark, "Oslo", "Rome")) == (1, 1, 0)
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
