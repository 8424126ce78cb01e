"""The notebook runs from top to bottom, in a kernel of its own; its Spark is the application of all tests."""

import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
# What IPython runs as it starts: the context that the notebook finds, and that its last cell does not stop.
STARTUP = """
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
gateway = launch_gateway()
scala = gateway.jvm.org.apache.spark.sql.SparkSession.getDefaultSession().get().sparkContext()
SparkContext(gateway=gateway, jsc=gateway.jvm.JavaSparkContext(scala))
SparkSession.stop = lambda session: None
"""


def output_of(cell: Any) -> str:
    """What a reader sees below a cell, as text."""
    shown = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(shown)


def test_the_notebook_runs_from_top_to_bottom(spark, tmp_path, monkeypatch) -> None:
    gateway = spark.sparkContext._gateway.gateway_parameters
    startup = tmp_path / "startup.py"
    startup.write_text(STARTUP)
    variables = {
        "PYTHONSTARTUP": startup,
        "PYSPARK_GATEWAY_PORT": gateway.port,
        "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
        "PYSPARK_PYTHON": sys.executable,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {cell.source.splitlines()[-1]: output_of(cell) for cell in notebook.cells if cell.cell_type == "code"}
    assert "2,000 rows" in shown["warm"]  # the progress
    assert "1333" in shown["warm"]  # the result
    assert "asyncudf.Run" in shown["run"]
    assert "for the input ('Atlantis',): KeyError: 'Atlantis'" in "".join(shown.values())
    assert shown["failed.count()"].endswith("1")
    assert "temperature" in (tmp_path / "report.html").read_text()
