"""NAIVE: a plain UDF that waits for each call, as most people write it first: `requests.get` for a row.

Its calls are those of P3, P3b, P3c and P5, one after the other in one task, so a round has fewer of them. The clock
runs from the first call to the end of the last one, nearly all of which is waiting: a busy machine changes little.
Nothing of this project runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from .._harness import Case, Sample, Settings, System
from .._http_server import http_server
from .._spark import local_spark
from .._work import lognormal

__all__ = ("NAIVE",)


def calls(session: SparkSession, latencies: Sequence[float], url: str = "") -> Sample:
    """The calls of these latencies; with an address each is a request."""

    @sf.udf("began double, ended double")
    def call(latency: float) -> tuple[float, float]:
        import time

        import requests

        began = time.time()
        if url:
            requests.get(url, timeout=60).raise_for_status()
        else:
            time.sleep(latency)
        return began, time.time()

    schema = st.StructType([st.StructField("latency", st.DoubleType())])
    rows = session.createDataFrame([(each,) for each in latencies], schema).coalesce(1)
    made = rows.select(call("latency").alias("call")).collect()
    seconds = made[-1].call.ended - made[0].call.began
    note = f"by requests.get, while the machine had a load average of {os.getloadavg()[0]:.0f}" if url else ""
    return Sample({"calls/s": len(latencies) / seconds}, note=note)


@contextlib.contextmanager
def naive(settings: Settings) -> Iterator[list[System]]:
    usual, http = 0.02, 0.05
    of = {
        "19 ms": lognormal(settings.rows(200)),
        "1% take 1 s": [usual] * settings.rows(99) + [1.0],
        "0.1% take 5 s": [usual] * settings.rows(999) + [5.0],
    }
    with local_spark() as session, http_server(http) as url:
        yield [
            *(System(name, partial(calls, session, latencies)) for name, latencies in of.items()),
            System("HTTP", partial(calls, session, [http] * settings.rows(60), url)),
        ]


NAIVE = Case(
    "NAIVE",
    "a plain UDF that makes one call after the other: HTTP by requests.get, or time.sleep",
    naive,
    minutes=2.8,
    how="one call after the other",
    is_cold=True,  # what goes before the first call does not count
    is_of_others=True,
)
