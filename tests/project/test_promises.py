"""Each door and each part of the semantics has a test with real Spark among those that `scripts/test` runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "tests" / "spark"
DOORS = {
    "column", "SQL function", "table function", "ordered_wait", "unordered_wait", "chain", "async_sink", "stream_sink",
    "sink_source", "submit", "LookupTable", "structured streaming", "foreachBatch", "Spark Connect", "monitor",
    "dry_run", "rehearse", "ship", "batch handler",
}  # fmt: skip
SEMANTICS = {
    "order", "0 to n results", "types", "vectorized functions", "models", "null input", "calls", "errors",
    "errors when planned", "context", "resources", "watermarks", "side outputs", "calls for each row", "cancellation",
    "LIMIT", "nothing is left", "memory", "stores", "resume", "limits of the job", "budgets", "Submit and collect",
}  # fmt: skip


def test_each_promise_is_shown_on_spark() -> None:
    marks = re.findall(r"mark\.promise\((.*?)\)", "".join(path.read_text() for path in SPARK.glob("test_*.py")))
    assert {name for mark in marks for name in re.findall(r'"(.*?)"', mark)} == DOORS | SEMANTICS


def test_the_matrix_names_tests_that_are_there() -> None:
    entry_points = runpy.run_path(str(ROOT / "scripts" / "matrix"))["ENTRY_POINTS"]
    files = [f"tests/spark/test_{file}.py" for files in entry_points.values() for file in files]
    assert [file for file in files if not (ROOT / file).is_file()] == []
