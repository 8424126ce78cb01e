"""Runs against a service that bills by itself, while workers and drivers are killed: it never bills more than a budget.

Eight tasks share the budget; in half of the runs each of three tenants has it for the day. Of the calls some are
refused and cost nothing, some fail and some hang, and are billed. The bill is a file that outlives whoever is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from asyncudf import AsyncUDF, Budget, ResultStore, RetryStrategy, async_pandas_udf
from tests.kit.drivers import begin, end

__all__ = ("ask_all", "run_budgets")

ROOT = Path(__file__).parents[2]
TASKS, ROWS, CAPACITY, TENANTS = 8, 400, 5, 3
DRIVERS = 10  # one run of so many has its driver killed
DAEMON = "tests.chaos.short_leases"
SESSION = f"session(SparkSession.builder.master('local[{TASKS},20]'))"


class RefusedError(Exception):
    """A 429."""

    status = 429
    headers = {"retry-after": "0.1"}


class BilledError(Exception):
    """A call that has failed and was billed; it has the cost."""


def settle(n: int, tenant: int, outcome: Any) -> float:
    """What a call did cost."""
    return float(outcome.args[0] if isinstance(outcome, BilledError) else outcome)


def asking(bill: str, amount: float, name: str, store: str | None, *, by_tenant: bool) -> AsyncUDF[..., Any]:
    """A function that costs up to 1, as the bill has it."""

    async def ask(n: int, tenant: int) -> float:
        chance, cost = random.random(), random.random()
        if chance < 0.05:
            raise RefusedError
        file = os.open(bill, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, f"{os.getpid()} {cost} {tenant}\n".encode())
        os.close(file)
        await asyncio.sleep(60.0 if chance < 0.07 else 0.02 + 0.04 * random.random())
        if chance < 0.2:
            raise BilledError(cost)
        return cost

    return async_pandas_udf(
        ask, "double", capacity=CAPACITY, attempt_timeout=0.5, retry=RetryStrategy.fixed_delay(3, 0.05),
        budget=Budget(
            amount, reserve=1.0, settle=settle, name=name, **({"by": "tenant", "per": "day"} if by_tenant else {})  # type: ignore[arg-type]
        ),
        on_spent="null", on_error="null", version=name,
        store=None if store is None else ResultStore.disk(store, max_bytes=2**24),
    )  # fmt: skip


def ask_all(
    spark: SparkSession, bill: str, amount: float, name: str, store: str | None, *, by_tenant: bool = False
) -> int:
    """Runs the query; how many rows came out of it."""
    ask = asking(bill, amount, name, store, by_tenant=by_tenant)
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("id", f"id % {TENANTS} AS tenant")
    return len(rows.select(ask("id", "tenant").alias("cost")).collect())


@dataclass
class BudgetRun:
    """One run, and what came out of it."""

    seed: int
    amount: float
    kills: int
    kills_driver: bool
    by_tenant: bool
    billed: float = 0.0  # to the tenant that was billed most
    rows: int = 0
    killed: list[int] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        found = [] if self.billed <= self.amount else [f"{self.billed} are billed of {self.amount}"]
        return found if self.rows == ROWS else [*found, f"{self.rows} rows of {ROWS}"]


def lines_of(bill: Path) -> list[tuple[int, float, int]]:
    """The process, the cost and the tenant of each call that was billed."""
    lines = bill.read_text().splitlines() if bill.exists() else []
    return [(int(pid), float(cost), int(tenant)) for pid, cost, tenant in map(str.split, lines)]


def billed(bill: Path, *, by_tenant: bool) -> float:
    """What all calls were billed together, or those of the tenant that was billed most."""
    sums: dict[int, float] = defaultdict(float)
    for _, cost, tenant in lines_of(bill):
        sums[tenant if by_tenant else 0] += cost
    return max(sums.values(), default=0.0)


def one_budget(spark: SparkSession, seed: int, folder: Path) -> BudgetRun:
    """Runs it, and kills while it runs."""
    chance, bill = random.Random(seed), folder / "bill"
    amount, kills = round(chance.uniform(5, 60), 2), chance.choice([0, 1, 1, 2, 3])
    run = BudgetRun(seed, amount, kills, seed % DRIVERS == 0, seed // DRIVERS % 2 == 1)
    store = str(folder / "store") if run.kills_driver or chance.random() < 0.3 else None
    name = f"run {seed} {time.time_ns()}"
    if run.kills_driver:
        kill_a_driver(bill, run, name, store, chance.uniform(0.1, 0.9) * run.amount)
    thresholds = sorted(chance.uniform(0.0, 1.0) * run.amount for _ in range(run.kills))
    is_over = threading.Event()

    def kill() -> None:
        while thresholds and not is_over.wait(0.01):
            if billed(bill, by_tenant=run.by_tenant) > thresholds[0]:
                del thresholds[0]
                lines = lines_of(bill)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(lines[-1][0], signal.SIGKILL)
                    run.killed.append(lines[-1][0])

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run.rows = ask_all(spark, str(bill), run.amount, name, store, by_tenant=run.by_tenant)
    finally:
        is_over.set()
        killer.join()
    run.billed = billed(bill, by_tenant=run.by_tenant)
    return run


def kill_a_driver(bill: Path, run: BudgetRun, name: str, store: str | None, threshold: float) -> None:
    """Begins the run in a driver of its own, and kills it with all its processes when so much is billed."""
    asked = f"ask_all({SESSION}, {str(bill)!r}, {run.amount!r}, {name!r}, {store!r}, by_tenant={run.by_tenant})"
    job = begin(f"from tests.chaos.budgets import ask_all\n{asked}", WORKER_DAEMON=DAEMON, PYTHONPATH=str(ROOT))
    while job.poll() is None and billed(bill, by_tenant=run.by_tenant) < threshold:
        time.sleep(0.02)
    end(job)
    length = -1
    while (now := len(lines_of(bill))) != length:  # workers end by themselves
        length = now
        time.sleep(1.0)


def run_budgets(count: int, seed: int) -> bool:
    """Runs so many, prints each and the table of all; whether none had a fault."""
    os.environ.update({"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"})
    builder = SparkSession.builder.master(f"local[{TASKS},20]").config("spark.python.daemon.module", DAEMON)
    options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
    for key, value in options.items():
        builder = builder.config(key, value)
    spark, runs = builder.getOrCreate(), list[BudgetRun]()
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory(prefix="budget-", ignore_cleanup_errors=True) as name:
            began = time.monotonic()
            run = one_budget(spark, number, Path(name))
        runs.append(run)
        killed = f"{len(run.killed)} workers{' and a driver' * run.kills_driver} killed"
        print(
            f"{number}: {time.monotonic() - began:.1f} s, {killed}, {run.billed:.2f} of {run.amount:.2f} billed"
            f"{''.join(f', FAULT: {fault}' for fault in run.faults)}",
            flush=True,
        )
    spark.stop()
    print(f"\n{table(runs)}")
    return not any(run.faults for run in runs)


def table(runs: list[BudgetRun]) -> str:
    """How much of its budget each kind of run has used."""
    kinds: dict[str, list[BudgetRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.kills_driver, len(run.killed))):
        killed = len(run.killed)
        workers = "nobody" if not killed else "1 worker" if killed == 1 else f"{killed} workers"
        kinds["the driver, and perhaps workers of the next run" if run.kills_driver else workers].append(run)
    lines = ["| Killed | Runs | Passed the amount | Left of it: median | most |", "|---|---|---|---|---|"]
    for kind, those in kinds.items():
        left = [run.amount - run.billed for run in those]
        passed = sum(run.billed > run.amount for run in those)
        lines.append(f"| {kind} | {len(those)} | {passed} | {statistics.median(left):.1f} | {max(left):.1f} |")
    return "\n".join(lines)
