"""A small chain: rows of numbers, and two operators one behind the other."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncudf import async_pandas_udf


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


@async_pandas_udf("first int")
async def first(n: int) -> dict[str, int]:
    await asyncio.sleep(10 - n)  # the last row is done first
    return {"first": n}


@async_pandas_udf("second int")
async def second(first: int) -> dict[str, int]:
    await asyncio.sleep(0.1)
    return {"second": first * 10}
