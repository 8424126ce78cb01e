"""How Java starts for short queries, fast and without optimizing; and where a compiler of Java is."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyspark
import pytest

from tests.kit.sail import HAS_SAIL

__all__ = ("find_jdk", "needs_jvm", "start_fast")


ARCHIVE = Path(sys.prefix, "spark.jsa")  # of Spark's classes; scripts/_environment.sh makes it


def start_fast() -> None:
    """Set the variables that each Java reads which starts from now on."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    if ARCHIVE.exists():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f'"-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable')


IS_CLIENT = not Path(pyspark.__path__[0], "jars").exists()
if IS_CLIENT:  # else `pyspark.testing` ends the process
    os.environ.setdefault("SPARK_HOME", pyspark.__path__[0])


def needs_jvm() -> None:
    """Skip a test that starts a Spark, where PySpark is a client alone or the tests are about Sail."""
    if HAS_SAIL or IS_CLIENT:
        pytest.skip("this needs the JVM of Spark")


def find_jdk() -> Path | None:
    """The folder of a JDK: that of JAVA_HOME, that on PATH, or one that Linux has installed without either."""
    on_path = shutil.which("javac")
    homes = [Path(os.environ.get("JAVA_HOME", "")), *([Path(on_path).resolve().parents[1]] if on_path else [])]
    for version in (17, 21, 25):  # that Spark runs with
        homes += sorted(Path("/usr/lib/jvm").glob(f"*{version}*"))
    return next((home for home in homes if (home / "bin" / "javac").is_file()), None)
