"""The environment of a chain in a task: its loop, clocks, randomness and callbacks."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._engine.operators.memory import TaskBatches
from .._errors.exceptions import FatalError
from .._functions.side_outputs import SideTypes
from .._limits.coordinator.names import TaskIdentity
from .._limits.own_limits import OwnLimits
from .._observe.counters import TaskCounters
from .._observe.time_account import SparkThread
from .._stores.base import in_folder, of_task
from .function_plan import FunctionPlan

if TYPE_CHECKING:
    from .._engine.stored.stored_results import StoredResults


def _raise(error: BaseException) -> None:
    raise error


@dataclasses.dataclass(frozen=True)
class TaskEnvironment:
    """The task that a chain runs in, as its operators see it.

    Time, randomness and the loop come from here alone, so that the test kit can give its own.
    """

    loop: asyncio.AbstractEventLoop
    rng: random.Random  # for the jitter of delays
    partition: int = 0
    attempt: int = 0  # how often Spark has started the task before
    side_types: SideTypes = lambda tag: None  # the checks of rows of side outputs; one that is not read has none
    # Asks for the next rows of the operator: Spark for a batch, if Spark feeds it.
    request_rows: Callable[[], None] = lambda: None
    fail: Callable[[BaseException], None] = _raise  # ends the chain with an error
    batches: TaskBatches | None = None  # those of its input and output that count; each chain has its own
    sampled: Callable[[], None] = lambda: None  # called when the figures of its operators were brought up to date
    folder: str | None = None  # where an executor's stores are; None: in a folder of this process
    own_clock: Callable[[], float] | None = None  # seconds; the loop's time unless given
    # Seconds, of a clock that all tasks share to within a tenth of a second; `clock` unless given.
    shared_clock: Callable[[], float] | None = None
    query: str | None = None  # the name of the task's query; None: the task is the whole job
    rows: str = ""  # names those of the query that are the task's; a second attempt of the task has it too
    # Of each function: the numbers of its operators in the task.
    uses: dict[str, itertools.count[int]] = dataclasses.field(default_factory=dict)
    own_limits: OwnLimits = dataclasses.field(default_factory=OwnLimits)  # that no other task shares
    stores: set[int] = dataclasses.field(default_factory=set)  # ids of the users' stores that operators have taken
    spark_thread: SparkThread | None = None  # notes when Spark's thread is away
    waited: float = 0.0  # seconds for which the task has waited for its first rows
    processor: Callable[[], float] = lambda: 0.0  # seconds of processor time that the process has used
    starved: Callable[[], float] = lambda: 0.0  # seconds for which the loop's thread could have worked and was not let

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of everything in the chain, in seconds."""
        return self.own_clock or self.loop.time

    def identity(self, plan: FunctionPlan) -> TaskIdentity | None:
        """This task among those that share a function's limits, if any do; FatalError without a coordinator."""
        if plan.coordinator is not None and self.query is not None:
            number = next(self.uses.setdefault(plan.spec.name, itertools.count()))  # each use counts its own rows
            return plan.coordinator.of_task(self.query, f"{self.rows}:{number}")
        if plan.options.needs_coordinator and self.query is not None:
            raise FatalError(f"{plan.spec.name} has a limit of the whole job, and its plan names no coordinator")
        return None

    def counters(self) -> TaskCounters:
        return TaskCounters(
            self.clock, self.spark_thread, waited=self.waited, processor=self.processor, starved=self.starved
        )

    def stored(self, plan: FunctionPlan, *, are_plain: bool = False) -> StoredResults:
        """The function's results in its store; `are_plain`: its arguments are, as in `canonical_rows`."""
        from .._engine.stored.stored_results import StoredResults  # most workers have no store

        assert plan.options.store is not None
        store = of_task(plan.options.store, self.stores)
        if self.folder is not None:
            store = in_folder(store, self.folder)
        return StoredResults(
            plan.spec.name, store, plan.result_keys(), plan.result_codec(), plan.options, self.clock,
            are_plain=are_plain,
        )  # fmt: skip
