"""Executors without this library, and `ship`, which brings it."""

import importlib.util
import io
import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity
from pyspark.sql import SparkSession

import asyncudf
from asyncudf import FunctionError, OptionError, async_pandas_udf, ship
from asyncudf._spark.shipping import _zipped
from tests.kit.drivers import SharedDriver

pytestmark = pytest.mark.spark

DECLARED = """
import json
@async_pandas_udf("string")
async def shout(word: str) -> str:
    return word.upper()

words = spark.createDataFrame([("oslo",), ("bergen",)], "word string").coalesce(1)
"""

TRY = """
def failure(attempt):
    try:
        attempt()
    except Exception as error:
        return str(error)

"""

MISSING = """
shout.with_options(output_mode="unordered").register(spark, "shout_rows")
words.createOrReplaceTempView("words")
print(json.dumps([
    failure(words.select(shout("word")).collect),
    failure(lambda: spark.sql("SELECT * FROM shout_rows(TABLE(words), 'word')").collect()),
]))
"""

SHIP = """
import os, tempfile
tempfile.tempdir = tempfile.mkdtemp()
asyncudf.ship(spark, "tenacity")
asyncudf.ship(spark, "tenacity")
os.rmdir(tempfile.tempdir)  # fails if anything was left there
tempfile.tempdir = None
"""

ENTRY_POINTS = """
shout.register(spark, "shout")
words.createOrReplaceTempView("words")
found = [
    [row[0] for row in words.select(shout("word")).collect()],
    [row[0] for row in spark.sql("SELECT shout(word) FROM words").collect()],
    [row[1] for row in unordered_wait(words, shout, "word").collect()],
    [row[1] for row in AsyncStream(words).ordered_wait(shout, "word").to_df().collect()],
]
print(json.dumps([sorted(one) for one in found]))
"""


# As with spark.archives and PYSPARK_PYTHON.
IN_ARCHIVE = (
    """
executable = spark.sparkContext.pythonExec
spark.sparkContext.addArchive("{1}#environment")
spark.sparkContext.pythonExec = "./environment/bin/python"
{0}"""
    + TRY
    + """
print(failure(lambda: shout.with_options(output_mode="unordered").register(spark, "u")))
spark.sparkContext.pythonExec = executable
"""
)


@pytest.fixture(scope="module")
def lean_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has all packages but this one and tenacity."""
    folder = tmp_path_factory.mktemp("lean")
    packages = folder / "packages"
    packages.mkdir()
    # An environment may borrow the packages of others: the first of a name is what is imported.
    found = [path for one in sys.path if one.endswith("-packages") for path in Path(one).iterdir()]
    for name, path in {path.name: path for path in reversed(found)}.items():
        if not name.startswith(("tenacity", "asyncudf", "__editable__")) and path.suffix != ".pth":
            (packages / name).symlink_to(path)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys._base_executable} -s "$@"\n')  # type: ignore[attr-defined]
    python.chmod(0o755)
    return str(python)


@pytest.fixture
def lean_cluster(cluster: SharedDriver, lean_python: str) -> Iterator[SharedDriver]:
    """Other tests find it as it was: without what is shipped."""
    before = cluster.run("print(spark.sparkContext.pythonExec)").strip()
    cluster.run(f"spark.sparkContext.pythonExec = {lean_python!r}")
    yield cluster
    cluster.run(f"spark.sparkContext.pythonExec = {before!r}; spark.sparkContext._python_includes.clear()")


@pytest.fixture
def archive(tmp_path: Path, lean_python: str) -> Path:
    """An environment in an archive, as venv-pack or conda-pack make it: with this library, and paths of its own."""
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    for module in (asyncudf, tenacity):
        shutil.copytree(module.__path__[0], environment / "packages" / module.__name__)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:$(dirname "$0")/../packages" exec {lean_python} "$@"\n')
    python.chmod(0o755)
    return Path(shutil.make_archive(str(environment), "gztar", environment))


def test_executors_without_the_library_say_so_and_an_archive_or_ship_brings_it(
    lean_cluster: SharedDriver, archive: Path
) -> None:
    """In this order, as what has been shipped stays. The driver is not in the archive: all but the table function,
    which Spark plans there, find what they need.
    """
    for missing in json.loads(lean_cluster.run(DECLARED + TRY + MISSING)):
        assert "No module named 'asyncudf'" in missing
        assert "asyncudf.ship(spark" in missing
        assert "--archives" in missing
        assert "install it there" in missing
    found, refused = lean_cluster.run(IN_ARCHIVE.format(DECLARED + ENTRY_POINTS, archive)).splitlines()
    assert json.loads(found) == [["BERGEN", "OSLO"]] * 4
    assert "here is no ./environment/bin/python" in refused
    lacking = lean_cluster.run(TRY + "print(failure(lambda: asyncudf.ship(spark)))")
    assert "lacks tenacity>=9 (not installed)" in lacking
    found = lean_cluster.run(DECLARED + SHIP + ENTRY_POINTS)
    assert json.loads(found) == [["BERGEN", "OSLO"]] * 4


@pytest.mark.promise("Spark Connect", "ship")
def test_ship_with_spark_connect(connect: SharedDriver) -> None:
    found = connect.run(DECLARED + SHIP + ENTRY_POINTS)
    assert json.loads(found) == [["BERGEN", "OSLO"]] * 4


def test_a_package_is_shipped_as_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders behind symbolic links are part of it; one that leads back up has no end."""
    package, elsewhere = tmp_path / "linked_package", tmp_path / "elsewhere"
    for folder in (package, elsewhere):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "part").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(package)
    monkeypatch.syspath_prepend(tmp_path)
    with zipfile.ZipFile(io.BytesIO(_zipped(["linked_package"]))) as archive:
        assert archive.namelist() == ["linked_package/__init__.py", "linked_package/part/__init__.py"]


def test_a_module_has_its_own_name_whatever_its_file_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of Airflow for the file of a DAG; it was sent as a module that nothing could import."""
    (tmp_path / "my_dag.py").touch()
    spec = importlib.util.spec_from_file_location("unusual_prefix_1f2e_my_dag", tmp_path / "my_dag.py")
    assert spec is not None
    monkeypatch.setitem(sys.modules, spec.name, importlib.util.module_from_spec(spec))
    with zipfile.ZipFile(io.BytesIO(_zipped([spec.name]))) as archive:
        assert archive.namelist() == ["unusual_prefix_1f2e_my_dag.py"]


@pytest.mark.parametrize(
    ("module", "why"),
    [("no_such_module", "cannot"), ("pyarrow", "compiled parts"), ("sys", "not made of files"), (7, "7 cannot")],
)
def test_modules_that_cannot_be_shipped(spark: SparkSession, module: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        ship(spark, module)


def test_a_table_function_says_that_the_executors_python_is_not_on_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    @async_pandas_udf("string", output_mode="unordered")
    async def shout(word: str) -> str:
        return word.upper()

    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./environment/bin/python")
    with pytest.raises(FunctionError, match=r"here is no \./environment/bin/python"):
        shout.register(spark, "shout")
