"""Iceberg in a driver of the tests, where its JAR can be had: a package has the one for Spark 3.5."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pyspark
import pytest

SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
}


def settings(folder: Path) -> dict[str, str]:
    """Settings of a session with a catalog `ice` in this folder; skips the test where there is no JAR."""
    version = ".".join(re.findall(r"\d+", pyspark.__version__)[:2])
    found = importlib.util.find_spec("snowpark_connect_deps_iceberg")
    places = [] if found is None else found.submodule_search_locations or []
    jars = [jar for place in places for jar in Path(place).rglob(f"iceberg-spark-runtime-{version}_2.12-*.jar")]
    if not jars:
        pytest.skip("no JAR of Iceberg for this Spark")
    return {**SETTINGS, "spark.jars": str(jars[0]), "spark.sql.catalog.ice.warehouse": str(folder / "ice")}
