"""Flink's Java API: FlinkAsync.java with the jars of the apache-flink-libraries wheel."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers._java import become, opened

CLASSES = Path(sys.prefix, "classes")
JARS = Path(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages", "pyflink", "lib")
# What Flink's own start scripts open for Java 17, as far as this job needs it.
OPENED = opened("java.lang", "java.net", "java.io", "java.nio", "java.util", "java.util.concurrent", "java.time")

NETTY = "org.apache.flink.shaded.netty4.io.netty"

if __name__ == "__main__":
    arguments = [sys.argv[1], version("apache-flink-libraries")]
    become("FlinkAsync", JARS, CLASSES, ["-Xmx1g", *OPENED], arguments, NETTY)
