"""Random programs with budgets of windows and keys, on the virtual clock: no amount is passed, whoever is killed.

    python -m tests.chaos.divided_budgets 200 --seed 1     programs; prints each that has a fault, and a table

Two jobs of several tasks share a budget by its name, on a real server. Calls fail, are refused, hang, and are made
again; tasks are killed at any moment, answers of the coordinator get lost, the coordinator loses its memory, and all
tasks are killed and the jobs run again. The service bills each call when it begins.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import random
import sys
import tempfile
from collections import Counter
from contextvars import ContextVar
from functools import partial
from typing import Any
from unittest import mock

from asyncudf import AsyncUDF, Budget, FatalError, ResultStore, RetryStrategy, async_pandas_udf
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._limits.budgets.task import BudgetGate
from asyncudf._limits.coordinator import client
from asyncudf._limits.coordinator.client import ANSWER
from asyncudf._limits.coordinator.names import CoordinatorConfig
from asyncudf._spark.planner import plan_function_offline
from asyncudf.testing import VirtualClockLoop, _runs
from tests.kit.coordinators import SERVER_TIME, OnGivenTime, Server, space_of_its_own, start_server
from tests.kit.engines import Engine

__all__ = ("Program", "run_program")

JOBS, ROWS, TENANTS, RESERVE = 2, 60, 5, 1.0
_task: ContextVar[Task] = ContextVar("task")
_window: ContextVar[str] = ContextVar("window")


class RefusedError(Exception):
    """A 429."""

    status = 429
    headers = {"retry-after": "0.5"}


class BilledError(Exception):
    """A call that has failed and was billed; it has the cost."""


def settle(tenant: str | None, x: int, outcome: Any) -> float:
    """What a call did cost."""
    return float(outcome.args[0] if isinstance(outcome, BilledError) else outcome)


@dataclasses.dataclass
class Program:
    """What is run, and what came out of it."""

    seed: int
    killed: int = 0
    lost_answers: int = 0
    lost_memories: int = 0
    runs: int = 0
    billed: Counter[tuple[str, Any]] = dataclasses.field(default_factory=Counter)
    rows: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.amount = rng.choice([2.0, 5.0, 12.5, 30.0])
        self.per = rng.choice([None, 3.0, 10.0, 60.0, "day"])
        self.by = "tenant" if self.per is None or rng.random() < 0.7 else None
        self.tasks = rng.randint(1, 3)
        self.trip = rng.choice([0.001, 0.02, 0.2])
        self.has_store = rng.random() < 0.5
        self.kills = rng.choice([0, 1, 2, 3])
        self.forgets = rng.random() < 0.3
        self.loses = rng.choice([0.0, 0.0, 0.02, 0.1])
        self.dies = self.has_store and rng.random() < 0.4  # all tasks, and then the jobs run again


class Task:
    """A task: its engine, and whether it was killed."""

    def __init__(self) -> None:
        self.is_dead = False
        self.is_over = False
        self.running: asyncio.Future[None] | None = None


class Connection(OnGivenTime):
    """A task's connection: no answer reaches one that was killed, and some answers are lost."""

    def __init__(self, server: Server, program: Program, space: str) -> None:
        super().__init__(server, program.trip, space)
        self._program, self._task = program, _task.get()

    async def run(self, script: str, keys: Any, *arguments: object) -> Any:
        while True:
            answer = await super().run(script, keys, *arguments)
            if self._task.is_dead:
                await asyncio.Event().wait()
            if self._program.rng.random() >= self._program.loses:
                return answer
            self._program.lost_answers += 1
            await asyncio.sleep(ANSWER)


def asking(program: Program, name: str, folder: str) -> AsyncUDF[..., Any]:
    """A function that is billed up to 1."""
    rng, billed, by = program.rng, program.billed, program.by

    async def ask(tenant: str | None, x: int) -> float:
        chance, cost = rng.random(), rng.random() * RESERVE
        if chance < 0.05:
            raise RefusedError
        billed[_window.get(), tenant if by else "all"] += cost  # type: ignore[assignment]
        await asyncio.sleep(99.0 if chance < 0.1 else rng.random() * 2)
        if chance < 0.2:
            raise BilledError(cost)
        return cost

    return async_pandas_udf(
        ask, "double", capacity=rng.choice([1, 3, 20]), attempt_timeout=5.0, retry=RetryStrategy.fixed_delay(3, 0.5),
        budget=Budget(program.amount, reserve=RESERVE, settle=settle, name=name, per=program.per, by=by),  # type: ignore[arg-type]
        on_spent="null", on_error="null", version="1",
        store=ResultStore.disk(folder, max_bytes=2**24) if program.has_store else None,
    )  # fmt: skip


def noted(began: Any) -> Any:
    """`BudgetGate.began`, that notes the window to which the attempt belongs."""

    def note(gate: BudgetGate, attempt: Any, now: float) -> None:
        _window.set(gate._asked[0].window.window.name)  # type: ignore[attr-defined]
        began(gate, attempt, now)

    return note


def run_program(server: Server, seed: int) -> Program:
    """Runs it; its faults say what did not hold."""
    program = Program(seed)
    with tempfile.TemporaryDirectory(prefix="divided-", ignore_cleanup_errors=True) as folder:
        name = f"{space_of_its_own()} of {seed}"
        run_once(server, program, name, folder, is_last=not program.dies)
        if program.dies:
            program.lost_memories += 1
            run_once(server, program, name, folder, is_last=True)
    for (window, tenant), cost in program.billed.items():
        if cost > program.amount * (1 + 1e-9):
            program.faults.append(f"{cost} are billed of {program.amount} for {tenant!r} in {window!r}")
    return program


def run_once(server: Server, program: Program, name: str, folder: str, *, is_last: bool) -> None:
    """One run of all jobs; all its tasks are killed unless it is the last."""
    loop, space, rng = VirtualClockLoop(), space_of_its_own(), program.rng
    program.runs += 1
    tasks = [Task() for _ in range(JOBS * program.tasks)]
    engines = []
    for number in range(len(tasks)):
        config = CoordinatorConfig(server.url, space, f"job {number % JOBS}")
        environment = partial(TaskEnvironment, partition=number, query="query", shared_clock=lambda: SERVER_TIME)
        plan = lambda *about, c=config: dataclasses.replace(plan_function_offline(*about), coordinator=c)  # noqa: E731
        with mock.patch.multiple(_runs, TaskEnvironment=environment, plan_function_offline=plan):
            engines.append(Engine(asking(program, name, folder), loop=loop))
        rows = [(rng.choice([None, *"abcdefg"[: TENANTS - 1]]), number * ROWS + x) for x in range(ROWS)]
        engines[-1].feed(rows)
        engines[-1].end()

    async def run(task: Task, engine: Engine) -> None:
        _task.set(task)
        task.running = asyncio.ensure_future(engine._run(None))
        try:
            await task.running
        except asyncio.CancelledError:
            pass
        except FatalError as error:
            if "has lost what was spent" not in str(error):
                program.faults.append(str(error))
        task.is_over = True

    def kill(task: Task) -> None:
        if not (task.is_dead or task.is_over):
            program.killed += 1
            task.is_dead = True
            assert task.running is not None
            task.running.cancel()

    def forget() -> None:
        from redis import Redis

        program.lost_memories += 1
        Redis.from_url(server.url).flushall()

    async def together() -> None:
        for _ in range(program.kills):
            loop.call_later(rng.random() ** 2 * 30, kill, rng.choice(tasks))
        if program.forgets:
            loop.call_later(rng.random() * 20, forget)
        if not is_last:
            end = rng.random() * 20
            for task in tasks:
                loop.call_later(end, kill, task)
        await asyncio.gather(*map(run, tasks, engines))

    connection = lambda *_, **__: Connection(server, program, space)  # noqa: E731
    with (
        mock.patch.object(client, "Coordinator", connection),
        mock.patch.object(BudgetGate, "began", noted(BudgetGate.began)),
    ):
        loop.run_until_complete(together())
    loop.close()
    for task, engine in zip(tasks, engines, strict=True):
        if not task.is_dead and not program.forgets and len(engine.output) != ROWS:
            program.faults.append(f"{len(engine.output)} rows of {ROWS}")
        program.rows += len(engine.output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    server, programs = start_server(), []
    try:
        for seed in range(given.seed, given.seed + given.programs):
            program = run_program(server, seed)
            programs.append(program)
            for fault in program.faults:
                print(f"{seed}: FAULT {fault}", flush=True)
    finally:
        server.close()
    amounts = sum(len(program.billed) for program in programs)
    most = max((cost / program.amount for program in programs for cost in program.billed.values()), default=math.nan)
    counts = {name: sum(getattr(one, name) for one in programs) for name in ("killed", "lost_answers", "lost_memories")}
    faulty = sum(bool(program.faults) for program in programs)
    print(
        f"{len(programs)} programs, {amounts} amounts, {counts}; the fullest has {most:.3f} of it; {faulty} with faults"
    )
    return int(bool(faulty))


if __name__ == "__main__":
    sys.exit(main())
