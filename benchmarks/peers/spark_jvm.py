"""An async client in `mapPartitions` of Spark's Java API: SparkAsync.java with the jars of this Python's PySpark."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers._environments import ROOT
from benchmarks.peers._java import become, opened

CLASSES = ROOT / "build" / "peers" / "jvm" / "classes"
# What Spark's own launcher opens for Java 17, as far as this job needs it.
OPENED = opened(
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
)

if __name__ == "__main__":
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        sys.exit("this Python has no pyspark")
    become("SparkAsync", Path(pyspark.origin).parent / "jars", CLASSES, ["-Xmx2g", *OPENED], [sys.argv[1]])
