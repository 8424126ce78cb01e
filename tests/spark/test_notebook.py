"""The notebook runs from top to bottom, with a session and a kernel of its own."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def output_of(cell: Any) -> str:
    """What a reader sees below a cell, as text."""
    shown = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(shown)


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {cell.source.splitlines()[-1]: output_of(cell) for cell in notebook.cells if cell.cell_type == "code"}
    assert "2,000 rows" in shown["warm"]  # the progress
    assert "1333" in shown["warm"]  # the result
    assert "asyncudf.Run" in shown["run"]
    assert "for the input ('Atlantis',): KeyError: 'Atlantis'" in "".join(shown.values())
    assert shown["failed.count()"].endswith("1")
    assert "temperature" in (tmp_path / "report.html").read_text()
