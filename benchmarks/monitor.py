"""What a monitor costs the driver of a job with 4,000 tasks that run at once: `python -m benchmarks.monitor`.

Another process connects as these tasks would, all at once, and reports for those that the driver takes. Then all end,
and their last messages come as Spark's accumulators bring them. The work of Spark itself is not counted.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import pickle
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from asyncudf._observe.function_metrics import FunctionMetrics
from asyncudf._observe.time_account import State
from asyncudf._spark.api.monitor import Run, _Progress
from asyncudf._spark.monitoring.live import Address, LiveReporter, LiveServer

TASKS, SECONDS = 4_000, 30.0
ROWS, PEAK, POINTS = 2_000, 100, 100  # of a task: its rows, its calls in flight, the points of its curve
SECRET = b"s" * 32


def cpu() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def watched(tasks: int, *, progress: bool) -> dict[str, float]:
    """What this process used while the tasks ran, when they ended, and for the report."""
    run = Run(object(), progress)  # type: ignore[arg-type]
    server = LiveServer("127.0.0.1", SECRET, run._watch.take, lambda message: None)
    player = multiprocessing.get_context("spawn").Process(target=play, args=(("127.0.0.1", server.port), tasks))
    lasts = [pickle.dumps(message(random.Random(number), number, "succeeded")) for number in range(100)]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.closing(server):
        shown = _Progress(run)
        if progress:
            shown.start()
        player.start()
        moments = [cpu()]
        player.join()
        moments.append(cpu())
        for number in range(tasks):
            run._watch.take({**pickle.loads(lasts[number % len(lasts)]), "id": str(number)})
        moments.append(cpu())
        if progress:
            shown.end()
    with tempfile.TemporaryDirectory() as folder:
        run.report(path := Path(folder, "report.html"))
        size = path.stat().st_size
    (function,) = run.metrics["functions"]
    assert function["rows"] == tasks * ROWS
    assert function["tasks"]["succeeded"] == tasks
    (start, cpu_start), (end, cpu_end), (_, cpu_ended) = moments
    return {
        "% of a core while tasks run": 100 * (cpu_end - cpu_start) / (end - start),
        "CPU ms of a task at its end": 1000 * (cpu_ended - cpu_end) / tasks,
        "MB of the report": size / 1e6,
    }


def play(address: Address, tasks: int) -> None:
    """Be these tasks for a while."""
    rng = random.Random(1)
    messages = [message(rng, 0, "running") for _ in range(20)]
    reporters = {number: LiveReporter(address, SECRET) for number in range(tasks)}
    due = dict.fromkeys((number for number, one in reporters.items() if one._socket is not None), 0.0)
    end = time.monotonic() + SECONDS
    while (now := time.monotonic()) < end:
        for number, at in due.items():
            if now >= at:
                due[number] = now + reporters[number].interval
                reporters[number].send({**messages[number % len(messages)], "id": str(number)})
        time.sleep(0.05)


def message(rng: random.Random, number: int, status: str) -> dict[str, Any]:
    """What a task reports of one function."""
    metrics = FunctionMetrics(tasks=1, seconds=100.0, in_flight_peak=PEAK)
    metrics.rows = metrics.results = metrics.calls = metrics.attempts = ROWS
    for sketch, count in ((metrics.latency, ROWS), (metrics.first, PEAK), (metrics.last, PEAK)):
        sketch.add([rng.lognormvariate(-3, 0.4) for _ in range(count)])
    metrics.time[State.CALLS_BUSY] = 100.0
    about = {"name": "f", "entry_point": "column", "order": [1, "", 0], "options": {"capacity": PEAK}}
    timeline = [[point + rng.random(), ROWS / POINTS, float(PEAK), float(PEAK)] for point in range(POINTS)]
    told = {"about": about, "metrics": metrics.to_plain(), "timeline": timeline}
    where = {"stage": 1, "partition": number, "attempt": 0, "batch": None, "host": "h", "began": time.time()}
    whole = {"id": str(number), "runs": [], "task": {**where, "status": status}, "functions": {"1": told}}
    found: dict[str, Any] = json.loads(json.dumps(whole))
    return found


if __name__ == "__main__":
    for progress in (False, True):
        for name, value in watched(TASKS, progress=progress).items():
            print(f"{TASKS:,} tasks, {'with' if progress else 'without'} progress: {value:.3g} {name}")
