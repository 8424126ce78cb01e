"""Where the driver is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a client of Spark Connect alone has none
    from pyspark import SparkContext

__all__ = ("driver_host", "is_local")


LOCAL = "127.0.0.1"


def is_local(context: SparkContext) -> bool:
    """Whether the executor is in the driver's own process, and so its Python workers are on this machine."""
    return (context.master or "").split("[")[0] == "local"


def driver_host(context: SparkContext) -> str:
    """Where the executors reach the driver: on this machine alone, where they all are in its own process."""
    if is_local(context):
        return LOCAL
    host: str = context.getConf().get("spark.driver.host") or LOCAL
    return host.removeprefix("[").removesuffix("]")
