"""Two services in a row: an address becomes coordinates, and the coordinates become weather.

    python examples/geocode_and_weather.py

Both operators run in one stage: a row goes to the second service as soon as the first has answered for it. A row that
fails leaves the stream for its dead letters, and a plain function sends readings that cannot be true to a side output.
The three are written apart as Parquet and come from one evaluation: the service counts one call for each row.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from functools import partial
from typing import Any

import _session
import aiohttp
from aiohttp import web

from asyncudf import DEAD_LETTERS, AsyncStream, OutputTag, ProcessContext, ProcessFunction

ADDRESSES = ["Karl Johans gate 1", "Via Appia 7", "Rue de Rivoli 9", "Nowhere 0"]
ANSWERS = {  # what the service knows; everything else is a 404
    "/places/Karl Johans gate 1": {"lat": 59.91, "lon": 10.74},
    "/places/Via Appia 7": {"lat": 41.87, "lon": 12.5},
    "/places/Rue de Rivoli 9": {"lat": 48.86, "lon": 2.34},
    "/weather/59.91,10.74": {"temp": 4.5},
    "/weather/41.87,12.5": {"temp": 999.0},  # the thermometer is broken
}
IMPLAUSIBLE = OutputTag("implausible", "address string, temp double")


async def geocode(address: str, session: aiohttp.ClientSession) -> dict[str, float]:
    async with session.get(f"/places/{address}", raise_for_status=True) as response:
        return await response.json()


async def weather(lat: float, lon: float, session: aiohttp.ClientSession) -> dict[str, float]:
    async with session.get(f"/weather/{lat},{lon}", raise_for_status=True) as response:
        return await response.json()


class Plausible(ProcessFunction):
    """Lets rows pass whose temperature can be true."""

    def process_element(self, value: dict[str, Any], context: ProcessContext, collector: Any) -> None:
        if -90 < value["temp"] < 60:
            collector.collect(value)
        else:
            context.output(IMPLAUSIBLE, {"address": value["address"], "temp": value["temp"]})


def enrich(url: str, folder: str) -> None:
    spark = _session.session()
    addresses = spark.createDataFrame([(address,) for address in ADDRESSES], "address string")
    options = {"on_error": "dead_letter", "resources": {"session": partial(aiohttp.ClientSession, url)}}
    with (
        AsyncStream(addresses)
        .unordered_wait(geocode, "address", returnType="lat double, lon double", **options)
        .unordered_wait(weather, "lat", "lon", returnType="temp double", **options)
        .process(Plausible())
    ) as stream:
        stream.write.parquet(f"{folder}/weather")  # the first action: here the service is called
        stream.side_output(IMPLAUSIBLE).write.parquet(f"{folder}/implausible")
        stream.side_output(DEAD_LETTERS).write.parquet(f"{folder}/dead_letters")
    spark.read.parquet(f"{folder}/weather").show(truncate=False)
    spark.read.parquet(f"{folder}/implausible").show(truncate=False)
    letters = spark.read.parquet(f"{folder}/dead_letters").orderBy("address")
    letters.select("address", "lat", "lon", "error.function", "error.type").show(truncate=False)
    spark.stop()


async def main() -> None:
    calls: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.Response:
        calls[request.match_info["service"]] += 1
        await asyncio.sleep(0.01)
        found = ANSWERS.get(request.path)
        return web.Response(status=404) if found is None else web.json_response(found)

    app = web.Application()
    app.router.add_get("/{service}/{key}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        with tempfile.TemporaryDirectory() as folder:
            await asyncio.to_thread(enrich, url, folder)  # the service goes on answering meanwhile
    finally:
        await runner.cleanup()
    print(f"{calls['places']} calls for {len(ADDRESSES)} addresses, {calls['weather']} calls for weather")


if __name__ == "__main__":
    asyncio.run(main())
