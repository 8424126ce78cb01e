"""Random submissions on Spark, with kills at every step: `python -m tests.chaos.submissions --programs 200`.

A service on a socket bills by itself. It, and the state, kill workers for real, and the driver as one process sees it:
all that it would have done is not done, what it has written stays, and running Spark jobs end half-way. Every tenth
program has a driver of its own, which is killed with its JVM.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import tests.kit
from asyncudf import AsyncUDFError, RuntimeContext, Submission, batch_function, submit
from asyncudf._batches import owner as owners
from asyncudf._batches import writer
from asyncudf._batches.state import StateFolder
from tests.kit.batch_folders import DriverKilled
from tests.kit.batch_services import BillingServer, Findable, Job, Jobs, billing
from tests.kit.drivers import DAEMON_FOLDER, driver
from tests.kit.java import start_fast

WRITES = ("write_rows", "add", "form", "send", "settle", "divide", "poll")


def read(answer: dict[str, Any]) -> int:
    return answer["value"]  # type: ignore[no-any-return]


@batch_function(parse=read)
def double(n: int, context: RuntimeContext) -> dict[str, Any]:
    return {"n": n, "attempt": context.attempt_number, "why": str(context.last_error or "")}


class Program:
    """A submission, a service with some manners, and some accidents, by chance."""

    def __init__(self, seed: int, server: BillingServer, url: str, spark: SparkSession, state: str) -> None:
        self.rng = rng = random.Random(seed)
        self.server, self.spark, self.state = server, spark, state
        self.kind: type[Jobs] = rng.choice([Jobs, Findable])
        bounds = {"max_queued": rng.choice([9.0, 15.0])} if rng.random() < 0.3 else {}
        self.service = self.kind(url, rng.randint(3, 8), **bounds)
        self.rows, self.distinct, self.attempts = rng.randint(0, 40), rng.randint(1, 25), rng.randint(1, 3)
        self.kills, self.left = rng.choice([0.02, 0.08, 0.2]), 8
        self.bad = {n: rng.random() for n in range(self.distinct)}
        # Requests that make each job fail that they are in.
        self.poison = {n for n in range(self.distinct) if rng.random() < 0.1} if rng.random() < 0.4 else set()
        self.kinds: Counter[str] = Counter()
        self.is_dead = False
        self.lost = 0  # jobs that were taken, and whose writer has died before their id was written
        self.own: Any = None  # a driver in a process of its own
        server.__init__()  # type: ignore[misc]
        server.answer, server.ends, server.lines, server.disturb = self.answer, self.ends, self.lines, self.disturb

    def accident(self, share: float) -> bool:
        happens = self.left > 0 and self.rng.random() < share
        self.left -= happens
        return happens

    def answer(self, body: Any, asked: int) -> Any:
        chance = (self.bad[body["n"]] * 7 + body["attempt"] * 0.37) % 1
        ends = [(0.05, None), (0.1, {"value": "x"}), (0.15, ValueError("400")), (0.2, ValueError("500"))]
        return next((end for share, end in ends if chance < share), {"value": 2 * body["n"]})

    def ends(self, job: Job) -> str:
        if any(body["n"] in self.poison for body in job.requests.values()):
            return "failed"
        return (
            self.rng.choice(["expired", "cancelled", "failed", "refused", "working"]) if self.accident(0.3) else "ended"
        )

    def lines(self, job: Job, found: list[str]) -> list[str]:
        self.rng.shuffle(found)
        if self.accident(0.1):
            return [*found[: len(found) // 2], '{"key"'] if self.rng.random() < 0.5 else found[: len(found) // 2]
        return [*found, *found[:2], f'{{"key": "{"0" * 32}", "answer": {{"value": 7}}}}']

    def disturb(self, step: str, pid: int) -> web.Response | None:
        """Of the service: kills whom it talks to, or answers with an error, before or after it did what was asked."""
        if self.accident(self.kills):
            self.lost += step.startswith("submit")  # the service takes the job of a worker that was just killed
            if self.own is not None and self.rng.random() < 0.5:
                self.kinds["driver process"] += 1
                os.killpg(self.own.pid, signal.SIGKILL)
                self.lost += 2 * step.startswith("submit")  # one for each slot
            elif self.own is None and self.rng.random() < 0.4:
                self.lost += 2 * step.startswith("submit")
                self.kinds[f"driver in {step}"] += 1
                self.is_dead = True
                self.spark.sparkContext.cancelAllJobs()
            else:
                self.kinds[f"worker in {step}"] += 1
                os.kill(pid, signal.SIGKILL)
        if self.accident(0.04):
            self.lost += step == "submit after"
            self.kinds[f"503 in {step}"] += 1
            return web.json_response({}, status=503)
        if step == "submit before" and self.accident(0.05):
            return web.json_response({}, status=429, headers={"Retry-After": "0.05"})
        return None

    def step(self, name: str) -> None:
        """Of the driver, before and after each thing that it writes."""
        if not self.is_dead and self.accident(self.kills / 2):
            self.kinds[f"driver {name}"] += 1
            self.is_dead = True
        if self.is_dead:
            raise DriverKilled(name)

    def play(self, with_process: bool) -> None:
        """Processes go on with it, one after the other, until it is done."""
        df = self.spark.range(0, self.rows, 1, 2).selectExpr("id", f"id % {self.distinct} AS n")
        begin = functools.partial(
            submit, df, double, "n", service=self.service, state=self.state, attempts=self.attempts
        )
        if with_process:
            self.in_process()
        for _ in range(40):
            owners._PROCESS = uuid.uuid4().hex
            self.is_dead = False
            try:
                is_done = begin().wait().is_done
            except (DriverKilled, AsyncUDFError):
                continue
            except Exception:
                if not self.is_dead:  # a worker that was killed four times ends the job
                    self.kinds["job failed"] += 1
                    self.lost += 2
                continue
            if is_done:
                self.check()
                return
        raise AssertionError("it goes on for ever")

    def in_process(self) -> None:
        place = f"{self.kind.__name__}({self.service.url!r}, {self.service.max_requests})"
        program = f"""
from tests.chaos.submissions import double
from tests.kit.batch_services import Findable, Jobs
spark = session(SparkSession.builder.master("local[2, 4]"))
df = spark.range(0, {self.rows}, 1, 2).selectExpr("id", "id % {self.distinct} AS n")
submit(df, double, "n", service={place}, state={self.state!r}, attempts={self.attempts}).wait()
"""
        with driver(program) as self.own:
            self.own.wait(120)
        self.own = None

    def check(self) -> None:
        submission = Submission.open(self.state, self.spark)
        status = submission.status()
        results, letters = submission.collect().collect(), submission.dead_letters().collect()
        assert sorted([row.id for row in results] + [row.id for row in letters]) == list(range(self.rows))
        assert all(row.double == 2 * row.n for row in results)
        for row in letters:
            has_failed = "its job has failed" in row.error.message
            assert row.error.status == 400 or has_failed or row.error.attempts == self.attempts, row
        assert not self.poison & {row.n for row in results}
        twice = len(self.server.jobs) - len({job.key for job in self.server.jobs.values()})
        if self.kind is Findable:
            assert (twice, status.may_be_twice) == (0, 0)
        assert twice <= self.lost, (twice, self.lost)
        self.kinds["jobs twice"] += twice
        keys = Counter(job.key for job in self.server.jobs.values())
        sizes = {job.key: len(job.requests) for job in self.server.jobs.values()}
        self.kinds["requests sent"] += sum(len(job.requests) for job in self.server.jobs.values())
        self.kinds["requests sent twice"] += sum((count - 1) * sizes[key] for key, count in keys.items())
        self.kinds[f"programs with {self.kind.__name__}"] += 1


def stepping(method: Callable[..., Any], name: str, program: list[Program]) -> Callable[..., Any]:
    """A method of the state that may be the last thing a driver does."""

    @functools.wraps(method)
    def called(*args: Any, **named: Any) -> Any:
        program[0].step(f"before {name}")
        try:
            done = method(*args, **named)
        except Exception:
            program[0].step(f"in {name}")  # its Spark job was ended
            raise
        program[0].step(f"after {name}")
        return done

    return called


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    logging.getLogger("asyncudf").setLevel(logging.ERROR)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cloudpickle.register_pickle_by_value(sys.modules[double.spec.function.__module__])
    cloudpickle.register_pickle_by_value(tests.kit)
    start_fast()
    os.environ["PYTHONPATH"] = os.pathsep.join([DAEMON_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
    quick = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.python.daemon.module": "preloaded_daemon",
        "spark.python.task.killTimeout": "100ms",
    }
    spark = SparkSession.builder.master("local[2, 4]").config(map=quick).getOrCreate()
    total: Counter[str] = Counter()
    program: list[Program] = []
    end = time.monotonic() + 60 * options.minutes
    with pytest.MonkeyPatch.context() as patch, billing() as (url, server), tempfile.TemporaryDirectory() as folder:
        patch.setattr(writer, "QUIET", 2.0)  # workers end at once here
        for name in WRITES:
            patch.setattr(StateFolder, name, stepping(getattr(StateFolder, name), name, program))
        for seed in itertools.islice(itertools.count(options.first), options.programs):
            if time.monotonic() > end:
                break
            program[:] = [Program(seed, server, url, spark, f"{folder}/{seed}")]
            try:
                program[0].play(with_process=seed % 10 == 9)
            except BaseException:
                print(f"program {seed} failed after {dict(program[0].kinds)}", flush=True)
                raise
            total += program[0].kinds
            total["programs"] += 1
            print(seed, dict(program[0].kinds), flush=True)
    print("in all", dict(sorted(total.items())))


if __name__ == "__main__":
    from tests.chaos.submissions import main as play  # so that functions have one name in all processes

    play()
