"""How Java starts for short queries: fast, and without optimizing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ("start_fast",)


ARCHIVE = Path(sys.prefix, "spark.jsa")  # of Spark's classes; scripts/_environment.sh makes it


def start_fast() -> None:
    """Set the variables that each Java reads which starts from now on."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    if ARCHIVE.exists():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f'"-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable')
