"""What an engine does not keep is written to a folder, once a row: side outputs, dead letters and branches on Sail.

Functions run in the server's process, so a list of this module sees each call.
"""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

from __future__ import annotations

import concurrent.futures
import itertools
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncStream,
    FunctionError,
    OptionError,
    OutputTag,
    RuntimeContext,
    async_pandas_udf,
)
from asyncudf._spark._compat import TimeType, VariantType
from asyncudf._spark.keeping import keep
from tests.kit.sail import session_at

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a server of another process cannot import it
pytest.importorskip("pysail.spark", reason="Sail is not installed: scripts/test --sail")
seen: Any = sys.modules.setdefault("seen_by_sail", types.ModuleType("seen_by_sail"))
ODD = OutputTag("odd", "id long, note string")
ROWS = 6


@async_pandas_udf("twice long", on_error="dead_letter")
async def twice(id: int, context: RuntimeContext) -> dict[str, int]:
    from seen_by_sail import keys  # type: ignore[import-not-found]

    keys.append(id)
    if id % 3 == 2:
        raise KeyError(id)
    if id % 2:
        context.output(ODD, {"id": id, "note": f"odd {id}"})
    return {"twice": 2 * id}


@async_pandas_udf("repaired long")
async def repair(id: int) -> dict[str, int]:
    seen.keys.append(-id)
    return {"repaired": id}


@pytest.fixture(autouse=True)
def keys() -> list[int]:
    """Those that functions were called for; negative ones those of `repair`."""
    seen.keys = []
    return seen.keys  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all is kept."""
    monkeypatch.setenv("ASYNCUDF_FOLDER", str(tmp_path))
    return tmp_path


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], subprocess.Popen[bytes]]:
    """Starts one with a server of its own."""

    def start(body: str) -> subprocess.Popen[bytes]:
        head = """
            import gc, os
            from pysail.spark import SparkConnectServer
            server = SparkConnectServer("127.0.0.1", 0)
            server.start(background=True)
        """
        file = tmp_path_factory.mktemp("program") / "program.py"  # with `python -c` Sail looks for a SPARK_HOME
        file.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        return subprocess.Popen([sys.executable, file], stdin=PIPE, stdout=PIPE, stderr=DEVNULL)

    return start


@pytest.fixture
def stream(spark: Any) -> Iterator[Any]:
    with AsyncStream(spark.range(0, ROWS, 1, 2), latency_interval=60.0) as source:
        yield source.ordered_wait(twice)


READS = {
    "main": lambda s: sorted(tuple(row) for row in s.collect()) == [(0, 0), (1, 2), (3, 6), (4, 8)],
    "count": lambda s: s.count() == 4,
    "letters": lambda s: sorted(row.id for row in s.side_output(DEAD_LETTERS).collect()) == [2, 5],
    "tag": lambda s: sorted(row.note for row in s.side_output(ODD).collect()) == ["odd 1", "odd 3"],
    "latencies": lambda s: s.side_output(LATENCIES).count() >= 0,
    "limit": lambda s: len(s.limit(1).collect()) == 1,
}
ORDERS = {
    "main first": ["main", "letters", "tag", "latencies", "main"],
    "letters first": ["letters", "main", "count", "letters"],
    "tag first": ["tag", "tag", "latencies", "main"],
    "latencies first": ["latencies", "count", "tag"],
    "a limit first": ["limit", "limit", "main", "letters"],
}


class TestOnceARow:
    @pytest.mark.parametrize("order", ORDERS)
    def test_in_whatever_order_results_are_read(self, stream: Any, keys: list[int], order: str) -> None:
        assert [name for name in ORDERS[order] if not READS[name](stream)] == []
        assert sorted(keys) == list(range(ROWS))

    def test_one_query_may_read_several_results(self, stream: Any, keys: list[int]) -> None:
        letters = stream.side_output(DEAD_LETTERS).select("id", sf.col("error.type").alias("type"))
        both = stream.join(letters, "id", "full").orderBy("id").collect()
        assert [(row.id, row.twice, row.type) for row in both][:3] == [
            (0, 0, None),
            (1, 2, None),
            (2, None, "KeyError"),
        ]
        assert sorted(keys) == list(range(ROWS))

    def test_branches_are_one_evaluation(self, stream: Any, keys: list[int]) -> None:
        frames = AsyncStream.collect(
            big=stream.branch().filter(lambda row: row["id"] > 2),
            text=stream.branch().map(lambda row: str(row["id"]), "string"),
            lost=stream.side_output(DEAD_LETTERS),
            repaired=stream.side_output(DEAD_LETTERS).ordered_wait(repair),
        )
        for _ in range(2):
            assert sorted(row.id for row in frames["big"].collect()) == [3, 4]
            assert sorted(row.value for row in frames["text"].collect()) == ["0", "1", "3", "4"]
            assert sorted(row.id for row in frames["lost"].collect()) == [2, 5]
            assert sorted(row.repaired for row in frames["repaired"].collect()) == [2, 5]
        assert sorted(keys) == [-5, -2, *range(ROWS)]

    def test_a_chain_goes_on_behind_a_side_output(self, stream: Any, keys: list[int]) -> None:
        repaired = stream.side_output(DEAD_LETTERS).ordered_wait(repair)
        assert [repaired.count() for _ in range(2)] == [2, 2]
        assert READS["main"](stream)
        assert sorted(keys) == [-5, -2, *range(ROWS)], "both may have latencies, so both are kept"

    def test_threads_that_read_at_the_same_time_share_it(self, stream: Any, keys: list[int]) -> None:
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            reads = [threads.submit(READS[name], stream) for name in ("main", "letters", "tag", "count")]
            assert all(read.result() for read in reads)
        assert sorted(keys) == list(range(ROWS))

    def test_what_is_closed_during_the_first_read_leaves_no_folder(self, spark: Any, folder: Path) -> None:
        """It stayed until the next `close`."""
        seen.begun, seen.closed = threading.Event(), threading.Event()

        def held(row: dict[str, Any]) -> dict[str, Any]:
            import seen_by_sail

            seen_by_sail.begun.set()
            assert seen_by_sail.closed.wait(60)
            return row

        source = AsyncStream(spark.range(0, 1, 1, 1), latency_interval=60.0).map(held)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            read = threads.submit(source.to_df)
            assert seen.begun.wait(60)
            source.close()
            seen.closed.set()
            read.result()
        assert os.listdir(folder) == []
        assert source.collect() == [(0,)]
        source.close()

    def test_its_columns_are_known_without_a_call(self, stream: Any, keys: list[int], folder: Path) -> None:
        letters = stream.side_output(DEAD_LETTERS)
        found = [(one.schema, one.columns, one.dtypes, one.isStreaming) for one in (stream, letters)]
        behind = letters.ordered_wait(repair).columns
        stream.printSchema()
        assert (keys, os.listdir(folder)) == ([], [])
        for one, (schema, columns, dtypes, is_streaming) in zip((stream, letters), found, strict=True):
            df = one.to_df()
            assert (schema.simpleString(), columns, dtypes, False) == (
                df.schema.simpleString(),
                df.columns,
                df.dtypes,
                is_streaming,
            )
        assert behind == [*letters.columns, "repaired"]


def spans(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first id of a partition, the last, and how many there are that follow each other."""
    ids = list(itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches))
    if ids:
        in_turn = 1 + sum(later == one + 1 for one, later in itertools.pairwise(ids))
        yield pa.RecordBatch.from_arrays([pa.array([one]) for one in (ids[0], ids[-1], in_turn)], ["a", "b", "n"])


def test_partitions_and_their_order_stay(spark: Any) -> None:
    async def noted(id: int, context: RuntimeContext) -> int:
        return id

    with AsyncStream(spark.range(0, 9000, 1, 3)).ordered_wait(noted) as stream:
        found = sorted(map(tuple, stream.mapInArrow(spans, "a long, b long, n long").collect()))
    assert found == [(0, 2999, 3000), (3000, 5999, 3000), (6000, 8999, 3000)]


VALUES = {
    "null": "null",
    "numbers": "struct(cast(1 as tinyint), cast(2 as smallint), cast(3.5 as float), cast('1.05' as decimal(38, 10)))",
    "moments": "struct(date'2020-01-02', timestamp'2020-01-01 10:00:00', timestamp_ntz'1969-12-31 23:59:59.999999')",
    "duration": "interval '1 02:03:04.000005' day to second",
    "time": "time'10:00:00.000001'",
    "variant": """parse_json('{"a": [1, null]}')""",
    "binary": "x'00ff'",
    "nested": "array(named_struct('m', map('k', array(1, null)), 'n', cast(null as struct<x: int>)), null)",
    "empty": "struct(array(), cast(map() as map<int, int>), '')",
}
NEWER = {"variant": VariantType, "time": TimeType}  # than the oldest clients


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_all_types_come_back_as_they_were(spark: Any, kind: str) -> None:
    if not issubclass(NEWER.get(kind, DataType), DataType):
        pytest.skip(f"this client reads no column of type {kind}")
    rows = spark.range(0, 2, 1, 2).selectExpr("id", f"{VALUES[kind]} AS v", f"if(id = 0, null, {VALUES[kind]}) AS w")
    with keep(rows) as kept:
        assert kept.schema.simpleString() == rows.schema.simpleString()
        assert sorted(map(repr, kept.collect())) == sorted(map(repr, rows.collect()))


@pytest.mark.parametrize(
    "columns", [["id AS a", "id + 1 AS a"], ["id AS `a.b`", "id AS `c``d`"], ["id AS a", "id AS A"]], ids=str
)
def test_columns_of_any_names_come_back(spark: Any, columns: list[str]) -> None:
    rows = spark.range(3).selectExpr(*columns)
    with keep(rows) as kept:
        assert (kept.columns, kept.collect()) == (rows.columns, rows.collect())


@pytest.mark.parametrize(
    "rows", ["range(0)", "range(0, 9, 1, 3).where('id > 100')", "range(0, 9, 1, 3).where('id > 7')"]
)
def test_partitions_without_rows_are_kept(spark: Any, rows: str) -> None:
    frame = eval(f"spark.{rows}")
    with keep(frame) as kept:
        assert (kept.collect(), kept.dtypes) == (frame.collect(), frame.dtypes)


class TestRemoval:
    def test_close_removes_it_and_the_next_read_evaluates_anew(
        self, stream: Any, keys: list[int], folder: Path
    ) -> None:
        df = stream.to_df()
        (made,) = folder.iterdir()
        assert made.stat().st_mode & 0o777 == 0o700
        stream.close()
        stream.close()
        assert os.listdir(folder) == []
        with pytest.raises(PySparkException, match=r"are gone.*until close\(\), the end of the with block"):
            df.collect()
        assert READS["main"](stream)
        assert sorted(keys) == sorted([*range(ROWS)] * 2)

    def test_an_exception_in_the_block_removes_it(self, spark: Any, folder: Path) -> None:
        def use() -> None:
            with AsyncStream(spark.range(3)).ordered_wait(twice) as stream:
                assert stream.count() == 2
                assert os.listdir(folder) != []
                raise ValueError("in the block")

        with pytest.raises(ValueError, match="in the block"):
            use()
        assert os.listdir(folder) == []

    def test_the_end_of_the_program_removes_it(self, folder: Path, program: Any) -> None:
        """Also if nothing is left of the stream but a DataFrame."""
        ran = program("""
            from pyspark.sql.connect.session import SparkSession
            from asyncudf._spark.keeping import keep
            spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").create()
            df = keep(spark.range(3)).frame
            gc.collect()
            print(df.count(), len(os.listdir(os.environ["ASYNCUDF_FOLDER"])))
        """)
        assert (ran.communicate()[0], os.listdir(folder)) == (b"3 1\n", [])

    def test_what_cannot_be_removed_is_told(
        self, stream: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(path: Path) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        stream.count()
        monkeypatch.setattr(shutil, "rmtree", refuse)
        with caplog.at_level(logging.WARNING, "asyncudf"):
            stream.close()
        assert "with kept results could not be removed ([Errno 13] Permission denied" in caplog.text


class TestFailures:
    def test_a_row_that_fails_says_so_itself_and_nothing_is_left(
        self, spark: Any, keys: list[int], folder: Path
    ) -> None:
        stream = AsyncStream(spark.range(0, 3, 1, 1)).ordered_wait(twice.with_options(on_error="raise"))
        with pytest.raises(
            PySparkException, match=r"twice failed in attempt 1.*for the input \(2,\)(.|\n)*raise KeyError"
        ):
            stream.count()
        assert os.listdir(folder) == []
        keys.clear()
        with pytest.raises(PySparkException, match="twice failed"):
            stream.to_df()
        assert 2 in keys, "what has failed is not kept"

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            ("/dev/null", r"ASYNCUDF_FOLDER is '/dev/null', and no folder can be made there \(.*Not a directory"),
            ("/nowhere/at/all", r"ASYNCUDF_FOLDER is '/nowhere/at/all', and no folder .*No such file"),
            ("dbfs:/kept", r"ASYNCUDF_FOLDER is 'dbfs:/kept', a URL; it takes the path of a folder"),
        ],
    )
    def test_a_folder_that_cannot_be_is_refused_before_any_call(
        self, stream: Any, keys: list[int], monkeypatch: pytest.MonkeyPatch, value: str, told: str
    ) -> None:
        monkeypatch.setenv("ASYNCUDF_FOLDER", value)
        with pytest.raises(OptionError, match=told):
            stream.count()
        assert keys == []

    def test_without_the_variable_it_is_a_temporary_folder(
        self, stream: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("ASYNCUDF_FOLDER")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        assert stream.count() == 4
        assert [one.name.startswith("asyncudf-kept-") for one in folder.iterdir()] == [True]

    def test_a_server_that_does_not_reach_the_folder_is_told_of_before_any_call(
        self, stream: Any, keys: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on another machine, where the path of the driver's folder leads to nothing."""
        monkeypatch.setattr(tempfile, "mkdtemp", lambda **made: f"{made['dir']}/only-on-the-driver")
        told = (
            r"Sail does not keep results here .* cannot write to .*/only-on-the-driver.*set ASYNCUDF_FOLDER in the "
            r"driver's environment.*or read one result of a stream alone"
        )
        with pytest.raises(FunctionError, match=told):
            stream.count()
        assert keys == []

    def test_one_result_alone_needs_no_folder(
        self, stream: Any, keys: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASYNCUDF_FOLDER", "/nowhere/at/all")
        assert AsyncStream.collect(lost=stream.side_output(DEAD_LETTERS))["lost"].count() == 2
        assert sorted(keys) == list(range(ROWS))

    def test_a_full_disk_is_told_and_nothing_is_left(self, spark: Any, folder: Path) -> None:
        """The system refuses each file that grows beyond a limit, so some batches are written before."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(PySparkException, match=r"results cannot be kept in .*it is full.*set ASYNCUDF_FOLDER"):
                keep(spark.range(0, 100_000, 1, 2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert os.listdir(folder) == []

    def test_a_folder_that_goes_while_rows_are_written_is_told(self, spark: Any, folder: Path) -> None:
        async def remove(id: int, context: RuntimeContext) -> int:
            for made in folder.iterdir():
                shutil.rmtree(made)
            return id

        with pytest.raises(PySparkException, match=r"results cannot be kept in .*No such file.*or gone"):
            AsyncStream(spark.range(0, 1, 1, 1)).ordered_wait(remove).to_df()

    @pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
    def test_a_server_that_ends_in_the_midst_leaves_nothing(
        self, folder: Path, program: Any, tmp_path_factory: Any
    ) -> None:
        """A server of its own process, which is killed during a call."""
        retries = pytest.importorskip("pyspark.sql.connect.client.retries", reason="Spark 3.5 has no such policies")
        begun = tmp_path_factory.mktemp("told") / "begun"
        os.mkfifo(begun)

        async def linger(id: int, context: RuntimeContext) -> int:
            import asyncio

            begun.write_text("a call has begun")  # until it is read
            await asyncio.sleep(3600)
            return id

        with program("print(server.listening_address[1], flush=True); input()") as process:
            try:
                session = session_at(int(process.stdout.readline()))
                session.client.set_retry_policies(
                    [retries.DefaultPolicy(max_retries=0)]
                )  # its own go on for ten minutes
                stream = AsyncStream(session.range(1)).ordered_wait(linger)
                with concurrent.futures.ThreadPoolExecutor(1) as thread:
                    read = thread.submit(stream.to_df)
                    assert begun.read_text() == "a call has begun"
                    assert len(os.listdir(folder)) == 1
                    process.kill()
                    with pytest.raises(PySparkException, match=r"UNAVAILABLE|RETRIES_EXCEEDED"):
                        read.result()
            finally:
                process.kill()
        assert os.listdir(folder) == []
