"""A figure that is declared in one line is everywhere where people look for it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = '''
import json
from importlib.machinery import SourceFileLoader

LINE = """    naps: int = _figure(
        "Naps taken.", unit="nap", noun=("nap",), in_frame=True, in_log=True, in_summary=99, on_page=99, export="naps")
"""

read = SourceFileLoader.get_code

def get_code(self, name):
    if name != "asyncudf._observe.function_metrics":
        return read(self, name)
    source = self.get_source(name)
    place = source.index("    retries: int")
    return compile(source[:place] + LINE + source[place:], self.path, "exec")

SourceFileLoader.get_code = get_code

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from asyncudf import Run
from asyncudf._observe.export import Exporter
from asyncudf._observe.function_metrics import FunctionMetrics
from asyncudf._observe.export import task_line
from asyncudf._observe.run_metrics import RunMetrics
from asyncudf._observe.reports.run_report import _page
from asyncudf._observe.reports.summary import summary
from asyncudf._spark.api.monitor import SCHEMA, _row

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
run = RunMetrics()
for number in range(2):
    totals = FunctionMetrics(tasks=1, seconds=5.0, rows=1, naps=3 + number)
    Exporter("f", "column").export(totals, 0, 0)
    told = {"about": {"name": "f", "entry_point": "column", "order": [0, 0], "options": {}}, "timeline": []}
    task = {"stage": 1, "partition": number, "attempt": 0, "batch": None, "host": "h", "began": 100.0}
    functions = {"f": {**told, "metrics": totals.to_plain()}}
    message = {"id": str(number), "task": {**task, "status": "succeeded"}, "functions": functions}
    run.add(json.loads(json.dumps(message)))
(function,) = run.to_plain()
whole = {"began": 100.0, "seconds": 5.0, "is_over": True, "functions": [function]}
instruments = json.loads(reader.get_metrics_data().to_json())["resource_metrics"][0]["scope_metrics"][0]["metrics"]
(naps,) = [one for one in instruments if one["name"] == "asyncudf.naps"]
page = _page(whole)

assert function["naps"] == 7 and [task["naps"] for task in function["per_task"]] == [3, 4]
assert "attempts bigint, naps bigint, retries bigint" in SCHEMA
assert len(_row(function, function["per_task"][0])) == SCHEMA.count(",") - SCHEMA.count("<") + 1
assert "4 naps" in task_line("f", totals)
assert "7 naps" in summary(whole)
assert "<dt>naps</dt>" in page
assert naps["data"]["data_points"][0]["value"] == 7 and (naps["unit"], naps["description"]) == ("{nap}", "Naps taken.")
assert "- `naps`: naps taken." in Run.metrics.__doc__
'''


def test_a_figure_has_one_place() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
