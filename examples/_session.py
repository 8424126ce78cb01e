"""The session of an example: of Spark in this process, or with `--engine sail` of Sail, which needs no Java."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

QUIET = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
ENGINE = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
ENGINE.add_argument("--engine", choices=["spark", "sail"], default="spark", help="what runs the queries")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser of an example's arguments, `--engine` among them."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[ENGINE]
    )


def session(master: str = "local[2]", **options: Any) -> SparkSession:
    """A session of the engine that the command line names; `options` are settings without their `spark.sql.`."""
    settings = {f"spark.sql.{name}": value for name, value in options.items()}
    if ENGINE.parse_known_args()[0].engine == "sail":
        return SparkSession.builder.remote(_sail()).config(map=settings).getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers take the python3 on PATH
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return SparkSession.builder.master(master).config(map={**QUIET, **settings}).getOrCreate()


def _sail() -> str:
    """The address of a Sail server that runs in this process."""
    os.environ.setdefault("RUST_LOG", "error")  # it has no other setting of its log
    try:
        from pysail.spark import SparkConnectServer
    except ImportError as error:
        raise SystemExit(
            f"{error}. Run the example with the Python of scripts/demo --engine sail: build/sail"
        ) from error
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    atexit.register(server.stop)  # and it would end if nobody had it any more
    host, port = server.listening_address
    return f"sc://{host}:{port}"
