"""Runs of several tasks over the real engine, on the virtual clock: what `run.metrics` would be."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

from asyncudf import AsyncUDF, RetryStrategy, async_pandas_udf
from asyncudf._errors import figures
from tests.kit.engines import Engine, added_up

BEGAN = 1_795_000_000.0  # some day in November 2026
_ids = itertools.count()


def message_of(udf: AsyncUDF[..., Any], rows: Iterable[Any], **told: Any) -> dict[str, Any]:
    """What a task tells of itself when it has run the function over these rows.

    Args:
        told: of the task (stage, partition, attempt, host, status, began), or of the function (use, name, order,
            entry_point, options), instead of what is usual.
    """
    engine = Engine(udf)
    engine.feed(rows)
    engine.end()
    engine.run()
    (counted,) = engine.counted.values()
    options = {name: getattr(udf.options, name) for name in ("capacity", "queue_size", "timeout", "attempt_timeout")}
    about = {
        "name": udf.spec.name,
        "entry_point": "column",
        "order": 0,
        "options": {**options, "output_mode": udf.options.output_mode.value, "on_error": udf.options.on_error.value},
    }
    about.update({name: told.pop(name) for name in list(about) if name in told})
    use = told.pop("use", about["name"])
    task = {"status": "succeeded", "stage": 2, "partition": 0, "attempt": 0, "host": "executor-1", "began": BEGAN}
    return {"id": f"task {next(_ids)}", "task": {**task, **told}, "functions": {use: {"about": about, **counted}}}


def metrics_of(
    messages: Iterable[Mapping[str, Any]], verdicts: Iterable[str] = (), *, is_over: bool = True
) -> dict[str, Any]:
    """What `run.metrics` is when these messages have come."""
    functions = added_up(messages)
    for function, text in itertools.zip_longest(functions, verdicts, fillvalue="Nothing to say."):
        costliest = max(function["time"], key=function["time"].__getitem__)
        share = function["time"][costliest] / function["seconds"] if function["seconds"] else 0.0
        told = text.format(share=figures.share(share), p50=figures.seconds(function["latency"]["p50"]))
        function["verdict"] = {"state": costliest, "share": share, "sureness": "sure", "text": told}
    ended = max((function["ended"] for function in functions), default=BEGAN)
    return {"began": BEGAN, "seconds": ended - BEGAN, "is_over": is_over, "functions": functions}


def plain_run(tasks: int = 8, rows: int = 1500) -> dict[str, Any]:
    """Calls of about 48 ms, all slots busy."""
    seed = random.Random(7)

    @async_pandas_udf("string", capacity=20)
    async def weather(city: int) -> str:
        await asyncio.sleep(seed.lognormvariate(-3.1, 0.35) + (seed.random() < 0.01) * 0.3)
        return "sunny"

    messages = [
        message_of(weather, range(rows - seed.randrange(rows // 4)), partition=number, began=BEGAN + number * 0.02)
        for number in range(tasks)
    ]
    text = (
        "{share} of the time all 20 slots of a task were busy and calls took {p50}: the service or capacity is the "
        "limit; capacity=40 would nearly halve the time if the service can take it"
    )
    return metrics_of(messages, [text])


def troubled_run(tasks: int = 5, rows: int = 400) -> dict[str, Any]:
    """Two functions: one with retries, timeouts and a failed task; one that waits behind slow rows."""
    seed = random.Random(11)

    class TooManyRequestsError(Exception):
        pass

    @async_pandas_udf(
        "double", capacity=16, timeout=4.0, attempt_timeout=1.5, on_error="null",
        retry=RetryStrategy.exponential_backoff(attempts=4, initial=0.2, maximum=2.0),
    )  # fmt: skip
    async def price(item: int) -> float:
        await asyncio.sleep(seed.lognormvariate(-2.2, 0.6))
        fate = seed.random()
        if fate < 0.08:
            raise TooManyRequestsError(
                f"429 Too Many Requests: https://user:secret@prices.example/items/{item}?key=abc"
            )
        if fate < 0.1:
            raise ConnectionResetError(104, "Connection reset by peer")
        if fate < 0.12:
            await asyncio.sleep(30)
        if item % 97 == 13:
            raise ValueError(f"no price for item {item}: the answer was {{'items': []}}")
        return 1.0

    @async_pandas_udf("string", capacity=16, queue_size=32)
    async def translate(text: int) -> str:
        await asyncio.sleep(0.03 if text % 60 else 0.9)
        return "bonjour"

    messages = []
    for number in range(tasks):
        told = {"partition": number, "began": BEGAN + number * 0.11, "host": f"10.0.0.{11 + number % 2}"}
        many = rows * 3 if number == 2 else rows
        messages.append(message_of(price, range(many), **told, order=0, use="price@1"))
        messages.append(message_of(translate, range(many), **told, order=1, entry_point="operator"))
    failed = {"partition": 1, "began": BEGAN + 0.1, "status": "failed", "host": "10.0.0.11"}
    messages[2]["task"]["attempt"] = messages[3]["task"]["attempt"] = 1
    messages.append(message_of(price, range(rows // 3), **failed, use="price@1"))
    busy = (
        "{share} of the time all 16 slots of a task were busy and calls took {p50}: the service or capacity is the "
        "limit; but one task of five had three times the rows of the others, and 15% of the attempts were retries"
    )
    waiting = (
        "{share} of the time slots were free behind a row that was not done: half of the calls took {p50}, the slowest "
        '0.9 s; output_mode="unordered" would let the others pass'
    )
    return metrics_of(messages, [busy, waiting])


def many_tasks(tasks: int = 240) -> dict[str, Any]:
    """A wave behind another, with a store and a limit."""
    seed = random.Random(3)

    @async_pandas_udf("string", capacity=8)
    async def embed(text: int) -> str:
        await asyncio.sleep(seed.uniform(0.2, 0.5))
        return "0.1 0.2"

    messages = []
    for number in range(tasks):
        told = {"partition": number, "began": BEGAN + number // 16 * 2.9, "host": f"executor-{number % 4}"}
        message = message_of(embed, range(seed.randrange(20, 70)), **told)
        counted = message["functions"]["embed"]["metrics"]
        counted.update(store_hits=seed.randrange(40), store_misses=counted["rows"], shared_flights=seed.randrange(5))
        busy = counted["time"]["calls_busy"]
        counted["time"].update(limit=0.8 * busy, calls_busy=0.2 * busy)
        messages.append(message)
    return metrics_of(messages, ["{share} of the time calls waited for a permit: rate_limit is the limit"])


def strange_run() -> dict[str, Any]:
    """Names and messages as nobody wants them; still running."""

    class Überraschung(Exception):  # noqa: N818
        pass

    @async_pandas_udf("string", capacity=3, on_error="null")
    async def odd(row: int) -> str:
        await asyncio.sleep(0.05)
        if row % 3 == 0:
            raise Überraschung(f"<script>alert('{row}')</script> & \"quotes\" 東京 🌧️ مرحبا " + "x" * 400)
        if row % 7 == 0:
            raise KeyError("</title></svg><img src=x onerror=alert(1)>")
        return "ok"

    name = "<b>a_very_long_name_" + "of_a_function_" * 12 + "</b>"
    options = {"note": "\"><script>alert('x')</script>", "headers": "y" * 300, "capacity": 3, "timeout": None}
    host = "ip-" + "10-1-" * 30 + "<i>compute</i>.internal"
    messages = [
        message_of(odd, range(60), name=name, use="odd", options=options, host=host, status="running", partition=number)
        for number in range(2)
    ]
    text = "<script>alert('verdict')</script> & more " + "text without an end " * 14
    return metrics_of(messages, [text], is_over=False)


def large_run(tasks: int = 12) -> dict[str, Any]:
    """Figures as large as they get, and time in all states."""
    seed = random.Random(5)

    @async_pandas_udf("string", capacity=2000, timeout=3600)
    async def look_up(row: int) -> str:
        await asyncio.sleep(seed.lognormvariate(0, 2))
        return "found"

    messages = []
    for number in range(tasks):
        message = message_of(look_up, range(300), stage=1412, partition=10_000 + number, attempt=number % 2)
        counted = message["functions"]["look_up"]["metrics"]
        more = seed.randrange(9 * 10**9)
        for name in ("rows", "results", "calls", "attempts"):
            counted[name] += more
        counted.update(
            attempts=counted["calls"] + 10**9,
            timeouts=10**9,
            failures=10**9,
            dead_letters=10**9,
            bytes_peak=3 << 40,
            queued_peak=10**9,
        )
        parts = {state: seed.random() * 10**6 for state in counted["time"]}
        counted.update(time=parts, seconds=sum(parts.values()))
        messages.append(message)
    return metrics_of(messages, ["{share} of the time: no state stands out"])


def run_without_calls() -> dict[str, Any]:
    """A function over a partition that has no rows."""

    @async_pandas_udf("string", capacity=5)
    async def idle(row: int) -> str:
        return "never"

    return metrics_of([message_of(idle, [])], ["No row came: nothing was called."])


def empty_run() -> dict[str, Any]:
    """Nothing ran."""
    return metrics_of([])


SAMPLES = {
    "plain": plain_run,
    "troubled": troubled_run,
    "many_tasks": many_tasks,
    "large": large_run,
    "strange": strange_run,
    "without_calls": run_without_calls,
    "empty": empty_run,
}
