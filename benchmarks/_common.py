"""What the benchmark programs share: the machine's description, medians, the latencies, a Spark session."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEAN_LATENCY, SIGMA = 0.019, 0.8  # seconds; lognormal


def machine() -> str:
    """One line: what this ran on."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pyarrow"))
    return f"CPython {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}; {versions}"


def interleaved(cases: dict[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Each case's figures, measured A B A B ..., after one round of warm-up that is not counted."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        for name, case in cases.items():
            figure = case()
            if repetition:
                figures[name].append(figure)
    return figures


def report(title: str, figures: dict[str, list[float]], unit: str, reference: str | None = None) -> None:
    """A table: median, smallest and largest figure, and the median's ratio to a reference case."""
    print(f"\n{title}   [{machine()}]")
    base = statistics.median(figures[reference]) if reference else None
    for name, values in figures.items():
        median = statistics.median(values)
        ratio = f"   {median / base:6.2f}x {reference}" if base else ""
        print(f"  {name:34s} {median:9.3f} {unit}  ({min(values):.3f} .. {max(values):.3f}){ratio}")


def lognormal(count: int, seed: int = 1) -> list[float]:
    """Seeded latencies in seconds whose mean is MEAN_LATENCY."""
    rng = random.Random(seed)
    mu = 0.0
    raw = [rng.lognormvariate(mu, SIGMA) for _ in range(count)]
    scale = MEAN_LATENCY * count / sum(raw)
    return [value * scale for value in raw]


def ideal(latencies: Sequence[float], capacity: int) -> float:
    """The time in which `capacity` callers that are never idle would be done."""
    return sum(latencies) / capacity


def batches(values: Sequence[Any], size: int = 10_000) -> Iterable[Sequence[Any]]:
    """Slices of the size of Spark's Arrow batches."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def spark(cores: int = 1) -> SparkSession:
    """A quiet local session whose workers run this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("asyncudf benchmarks")
    session = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
