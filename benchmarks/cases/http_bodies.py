"""JSON, SOCKETS and TASKS: HTTP as users do it.

JSON has bodies from 200 bytes to 100 kB, which are parsed and become a struct of four fields: the CPU time of a request
in Spark beside that of a bare program with the same parser. The server answers at once.

SOCKETS has from 10 to 10,000 requests in flight, each on a connection of its own, to a server that answers after 20 ms.
TASKS has the same server and 100 requests in flight in each of one, two and four tasks of one job. Client and server
share the machine.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import aiohttp
import msgspec
import orjson
import uvloop
from pyspark.sql import SparkSession

from asyncudf import AsyncUDF, async_pandas_udf

from .._harness import Case, Sample, Settings, System
from .._http_server import http_server
from .._meter import Meter, metered
from .._peers import TIMEOUT
from .._spark import local_spark, seconds_of_calls
from .._work import CAPACITY, SAME_LOOP, bare, run, settle_collector
from .p5_http import request, sample, session_of

__all__ = ("JSON", "SOCKETS", "TASKS")

REQUESTS = {200: 30_000, 5_000: 20_000, 100_000: 4_000}  # by the bytes of a body
LATENCY = 0.02  # seconds
CAPACITIES = (10, 100, 1_000, 10_000)
ROUNDS = 200  # requests of each slot, 4 seconds of waiting
MOST = 100_000  # requests
IN_ALL_TASKS, TASK_COUNTS = 60_000, (1, 2, 4)  # requests
STRUCT = "call double, temp double, sky string, readings int"
Parse = Callable[[bytes], Any]
Ask = Callable[[aiohttp.ClientSession], Any]


class Weather(msgspec.Struct):
    """What of a body is wanted: msgspec reads nothing else."""

    temp: float
    sky: str
    readings: list[msgspec.Raw]


PARSERS: dict[str, Parse] = {
    "json": json.loads,
    "orjson": orjson.loads,
    "msgspec": lambda body: msgspec.structs.asdict(msgspec.json.decode(body, type=Weather)),
}


@contextlib.contextmanager
def bodies(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session, http_server(0.0) as url, tempfile.TemporaryDirectory() as folder:
        meter = Meter(folder, "json")
        systems = []
        for name, parse in PARSERS.items():
            for size, requests in REQUESTS.items():
                rows, ask = settings.rows(requests), partial(weather, f"{url}json/{size}", parse)
                systems += [
                    System(f"{SAME_LOOP}, {name}", partial(bare_client, rows, ask), "reference", at=size),
                    System(
                        f"column, {name}",
                        partial(of_one_task, session, rows, ask, meter, returns=STRUCT),
                        at=size,
                    ),
                ]
        yield systems


async def weather(url: str, parse: Parse, session: aiohttp.ClientSession) -> dict[str, Any]:
    start = time.time()
    async with session.get(url) as response:
        response.raise_for_status()
        found = parse(await response.read())
    return {"call": start, "temp": found["temp"], "sky": found["sky"], "readings": len(found["readings"])}


async def started(url: str, session: aiohttp.ClientSession) -> dict[str, Any]:
    """One request whose body is read and not parsed."""
    return {"call": await request(session, url)}


def bare_client(rows: int, ask: Ask, capacity: int = CAPACITY) -> Sample:
    async def main() -> float:
        async def call(row: int) -> float:
            answer: dict[str, float] = await ask(session)
            return answer["call"]

        async with session_of(capacity) as session:
            return await bare(call, range(rows), capacity)

    settle_collector()
    with metered() as used:
        seconds = run(main(), uvloop.new_event_loop)
    return sample(rows, seconds, used)


def of_one_task(
    session: SparkSession, rows: int, ask: Ask, meter: Meter, capacity: int = CAPACITY, returns: str = "call double"
) -> Sample:
    called = client(ask, returns, capacity, meter=meter.resource)
    df = session.range(rows, numPartitions=1).select(called("id").alias("found")).select("found.call")
    return sample(rows, seconds_of_calls(df, rows), meter.read())


def client(ask: Ask, returns: str, capacity: int, **resources: Any) -> AsyncUDF[..., Any]:
    resources |= {"session": partial(session_of, capacity)}

    @async_pandas_udf(returns, capacity=capacity, timeout=TIMEOUT, resources=resources)
    async def get(x: int, **opened: Any) -> Any:
        return await ask(opened["session"])

    return get


@contextlib.contextmanager
def sockets(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session, http_server(LATENCY) as url, tempfile.TemporaryDirectory() as folder:
        meter, ask = Meter(folder, "sockets"), partial(started, url)
        sizes = {capacity: settings.rows(min(ROUNDS * capacity, MOST)) for capacity in CAPACITIES}
        yield [
            *(
                System("column", partial(of_one_task, session, rows, ask, meter, capacity), at=capacity)
                for capacity, rows in sizes.items()
            ),
            *(
                System(SAME_LOOP, partial(bare_client, rows, ask, capacity), "reference", at=capacity)
                for capacity, rows in sizes.items()
            ),
        ]


@contextlib.contextmanager
def tasks(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(IN_ALL_TASKS)
    with local_spark(cores=max(TASK_COUNTS)) as session, http_server(LATENCY) as url:
        yield [
            System("column", partial(of_tasks, session, rows, partial(started, url), count), at=count)
            for count in TASK_COUNTS
        ]


def of_tasks(session: SparkSession, rows: int, ask: Ask, count: int) -> Sample:
    called = client(ask, "call double", CAPACITY)
    df = session.range(rows, numPartitions=count).select(called("id").alias("found")).select("found.call")
    return Sample({"requests/s": rows / seconds_of_calls(df, rows)})


PLOTS = ("CPU us/request", "requests/s")
JSON = Case(
    "JSON",
    "HTTP requests whose JSON is parsed to a struct, 100 in flight",
    bodies,
    repetitions=3,
    axis="bytes of a body",
    plots=PLOTS,
    loop="on uvloop",
)
SOCKETS = Case(
    "SOCKETS",
    "HTTP requests to a server that answers after 20 ms, by capacity",
    sockets,
    repetitions=3,
    axis="capacity",
    plots=PLOTS,
    loop="on uvloop",
)
TASKS = Case(
    "TASKS",
    "HTTP requests to a server that answers after 20 ms, 100 in flight in each task",
    tasks,
    repetitions=3,
    axis="tasks",
    plots=("requests/s",),
    loop="on uvloop",
)
