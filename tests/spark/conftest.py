"""One session for all tests, and the means to see from outside what a worker has done and what it left behind.

It is of Sail where that is installed, of the server that SPARK_REMOTE names, or of a Spark in this process. A test that
the engine cannot run is skipped where the engine, PySpark or asyncudf says so by name, or by its mark `spark_only`.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import tests.kit
from asyncudf import AsyncStream, AsyncUDFError, async_pandas_udf
from tests.kit.drivers import DAEMON_FOLDER, SharedDriver
from tests.kit.interrupts import end_answers
from tests.kit.leftovers import end_workers, leftovers
from tests.kit.not_here import OLDER, REFUSED, skip_where
from tests.kit.sail import HAS_SAIL, sail_session
from tests.kit.standalone import StandaloneCluster

# A zone with a repeated hour each autumn, and not the session's: nothing may depend on the machine's own zone.
WORKER_ZONE = "America/New_York"
SESSION_ZONE = "UTC"
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Both save a tenth of most queries. Tests about plans have Spark's defaults, by the fixture `adaptive`.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": SESSION_ZONE,
    "spark.python.task.killTimeout": "100ms",
    "spark.python.daemon.module": "preloaded_daemon",
    # Each query of the tests is a new one: to compile its expressions takes longer than to interpret them. The plans
    # are the same. Spark compiles them, as by default, in test_doors.py, and in drivers that a test starts for itself.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Settings with which the same tests run once more, such as "spark.python.udf.pipelined.enabled=true".
    **dict(one.split("=") for one in os.environ.get("ASYNCUDF_TEST_CONF", "").split(",") if one),
}

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(tests.kit)


REMOTE = os.environ.get("SPARK_REMOTE")
IS_CLASSIC = not HAS_SAIL and not REMOTE
pytest_runtest_call = pytest_runtest_setup = skip_where(OLDER | REFUSED)


# The files of tests that run on Sail as well. Others are about Spark's processes, programs with a session of their own,
# streams, or what tests/engines shows on Sail.
ON_SAIL = {
    *("arguments_and_types", "batch_handler", "behind_side_outputs", "calls_per_row", "chain_lifecycle"),
    *("chain_plan_errors", "chains", "column", "dead_letters", "doors", "dry_run", "errors", "evaluations", "http"),
    *("like_pandas_udf", "live", "models", "null_input", "operator_forms", "plan_errors", "side_outputs", "stores"),
    *("streaming", "table_functions", "types", "vectorized", "watermarks"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not IS_CLASSIC and (mark := item.get_closest_marker("spark_only")):
            item.add_marker(pytest.mark.skip(f"of Spark alone: {mark.args[0]}"))
        elif HAS_SAIL and item.path.parent == Path(__file__).parent and item.path.stem[5:] not in ON_SAIL:
            item.add_marker(pytest.mark.skip("tests/engines has those of Sail"))


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Iterator[None]:
    """A test whose time is over disturbs no other one."""
    yield
    fail = signal.getsignal(signal.SIGALRM)

    def end(number: int, frame: Any) -> None:
        end_answers()
        fail(number, frame)

    signal.signal(signal.SIGALRM, end)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if HAS_SAIL:
        session = sail_session()
    elif REMOTE:
        session = remote_session(REMOTE)
    else:
        session = classic_session(tmp_path_factory.mktemp("spark"))
    with session as spark:
        if not IS_CLASSIC:
            for name, value in CONFIG.items():
                if name.startswith("spark.sql."):  # the rest is the server's
                    spark.conf.set(name, value)
        yield spark


@contextlib.contextmanager
def remote_session(url: str) -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(url).getOrCreate()
    yield session
    session.stop()


@contextlib.contextmanager
def classic_session(folder: Path) -> Iterator[SparkSession]:
    started_with = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": WORKER_ZONE,
        "PYTHONPATH": DAEMON_FOLDER,  # in which Spark finds its daemon
    }
    before = {name: os.environ.get(name) for name in started_with}
    os.environ.update(started_with)
    builder = SparkSession.builder.master("local[2]").appName("asyncudf tests")
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    # Java resolves relative paths in the folder it is started in, wherever the driver goes later.
    with contextlib.chdir(folder):
        session = builder.getOrCreate()
    for name, old in before.items():
        if old is None:
            del os.environ[name]
        else:
            os.environ[name] = old
    session.sparkContext.setLogLevel("OFF")  # tests make tasks fail on purpose
    yield session
    session.stop()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers; each driver of the tests has an executor on each of them."""
    folder = tmp_path_factory.mktemp("standalone")
    with contextlib.closing(StandaloneCluster(folder)) as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


# On, so that a test can have it: no task is copied before all have ended, unless a test lowers the quantile.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "1.0",
}


@pytest.fixture(scope="session")
def cluster(standalone: StandaloneCluster) -> Iterator[SharedDriver]:
    """A driver with two executors on a standalone cluster, two tasks in each; a task is tried four times."""
    with contextlib.closing(SharedDriver(f"{standalone.builder()}.config(map={SPECULATION!r})")) as driver:
        yield driver


@pytest.fixture(scope="session")
def connect() -> Iterator[SharedDriver]:
    """A driver with a session of Spark Connect."""
    pytest.importorskip("grpc", reason="Spark Connect is not installed")
    if pyspark.__version__.startswith("3."):
        pytest.skip("Spark 3.5 brings no server of Spark Connect")
    # With SPARK_TESTING the server takes a free port, while other tests may use the usual one.
    with contextlib.closing(SharedDriver('SparkSession.builder.remote("local[2]")', SPARK_TESTING="1")) as driver:
        yield driver


@pytest.fixture(autouse=True, scope="module")
def _by_value(request: pytest.FixtureRequest) -> None:
    """Workers cannot import a test module: what it defines travels by value, as from a notebook."""
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    """Sets a session option for one test: conf("spark.sql.session.timeZone", "Asia/Tokyo")."""
    if IS_CLASSIC:  # another test may have left the thread to a session of its own, which Spark reads types with
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]
    before: dict[str, str | None] = {}

    def change(name: str, value: Any) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture
def adaptive(conf: Any) -> None:
    """Queries are planned as Spark does by default."""
    conf("spark.sql.adaptive.enabled", "true")
    conf("spark.sql.shuffle.partitions", 2)


@pytest.fixture
def small_batches(conf: Any) -> None:
    """Seven rows in an Arrow batch, so that a hundred rows make many of them."""
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 7)


@pytest.fixture
def stream_of() -> Iterator[Any]:
    """Begins streams that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda df, **options: stack.enter_context(AsyncStream(df, **options))


@pytest.fixture
def lines_of(spark: SparkSession, tmp_path: Path) -> Any:
    """An unbounded table of the lines of some texts, which come one after the other."""

    def begin(*texts: str) -> DataFrame:
        folder = tmp_path / "in"
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_text(text)
        stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
        return stream.withColumnRenamed("value", "line")

    return begin


class Journal:
    """A file to which functions in workers append a line for each thing that happens; travels inside closures."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def write(self, *words: Any) -> None:
        line = " ".join(map(str, words)) + "\n"
        file = os.open(self._path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        try:
            os.write(file, line.encode())  # one short append is not torn by another process
        finally:
            os.close(file)

    @property
    def lines(self) -> list[str]:
        return Path(self._path).read_text().splitlines() if os.path.exists(self._path) else []

    def __len__(self) -> int:
        return len(self.lines)

    def count(self, first_word: str) -> int:
        return sum(line.split(" ")[0] == first_word for line in self.lines)

    def times(self, first_word: str) -> list[float]:
        """The second words of such lines, in order."""
        return sorted(float(words[1]) for line in self.lines if (words := line.split(" "))[0] == first_word)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def noting(journal: Journal) -> Any:
    """Makes functions with these options that note when they are opened and called."""

    @contextlib.asynccontextmanager
    async def opened() -> Any:
        journal.write("open", time.time())
        yield

    def make(**options: Any) -> Any:
        @async_pandas_udf("long", resources=opened, **options)
        async def noted(id: int, opened: None) -> int:  # noqa: A002
            journal.write("call", time.time(), id)
            await asyncio.sleep(0.01)
            return id

        return noted

    return make


@pytest.fixture
def to_its_end(tmp_path: Path) -> Any:
    """Runs a streaming query over all that there is, from where its checkpoint was."""

    def run(writer: Any, checkpoint: str = "checkpoint") -> None:
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(300)

    return run


def until(condition: Any, what: str, deadline: float = 300.0) -> None:
    """Wait for something that is bound to happen."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what}")
        time.sleep(0.05)


@pytest.fixture(name="until")
def _until() -> Any:
    return until


class Workers:
    """Spark's Python workers, seen from a later job that runs in the same processes.

    They are new: a program of another test may have left something in its own for good, like the thread of an SDK.
    """

    def __init__(self, spark: SparkSession) -> None:
        end_workers(spark)
        self._spark = spark

    def look(self) -> dict[int, list[str]]:
        """By process id, what is left over in each worker that a new job gets."""
        return leftovers(self._spark)

    def assert_clean(self, pids: set[int], *, reused: bool) -> None:
        """Each of these processes has ended, or (always, with `reused`) serves a later job with nothing left over."""
        assert pids, "the test has recorded no process"
        seen: dict[int, list[str]] = {}

        def all_clean() -> bool:
            seen.update(self.look())
            return all(seen.get(pid) == [] or (not reused and not alive(pid)) for pid in pids)

        try:
            until(all_clean, "workers without left-overs")
        except AssertionError as error:
            raise AssertionError(f"{error}; { ({pid: seen.get(pid, 'not seen') for pid in pids}) }") from None


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture(name="alive")
def _alive() -> Any:
    return alive


@pytest.fixture
def workers(spark: SparkSession) -> Workers:
    return Workers(spark)


class NoJob:
    """Within `with no_job:` Spark runs no job."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()

    def __enter__(self) -> None:
        self._before = set(self._tracker.getJobIdsForGroup())

    def __exit__(self, *error: object) -> None:
        assert set(self._tracker.getJobIdsForGroup()) == self._before, "a job was run"


@pytest.fixture
def no_job(spark: SparkSession) -> NoJob:
    return NoJob(spark)


def spark_error(query: Any) -> str:
    """The text of the Spark error that a query ends with, without the lines of source code in its traceback."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own type depends on the entry point
        query() if callable(query) else query.collect()
    assert not isinstance(caught.value, (AsyncUDFError, AssertionError)), "raised on the driver"
    return re.sub(r"\n  File .*\n.*(\n\s*[\^~]+)?", "", str(caught.value))


@pytest.fixture(name="spark_error")
def _spark_error() -> Any:
    return spark_error
