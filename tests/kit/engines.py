"""The engine as Spark's worker starts it, without Spark and on the virtual clock, with its figures at any moment."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

from asyncudf import AsyncUDF, OutputTag, async_pandas_udf
from asyncudf._chain.chain import Chain
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._limits.coordinator import client
from asyncudf._limits.coordinator.names import CoordinatorConfig
from asyncudf._observe.run_metrics import RunMetrics
from asyncudf._spark.planner import plan_function_offline
from asyncudf.testing import VirtualClockLoop, _runs
from asyncudf.testing._runs import ListOutput, chain_of, elements_of
from tests.kit.coordinators import OnGivenTime, Server, space_of_its_own

__all__ = ("Counted", "Engine", "added_up", "run_tasks", "started_streams")


Counted = Mapping[str, Mapping[str, Any]]


class Engine:
    """One function, for what `run_rows` and `OperatorHarness` do not show: its figures, and input that comes late.

    Args:
        output: takes what the engine emits.
        loop: of another engine, whose time this one shares.

    Attributes:
        loop: the clock, for what is to happen at a time; it is closed when `run` returns.
        output: what the engine has emitted so far.
        side_outputs: the same of its side outputs, as `run_rows` gives them.
    """

    def __init__(
        self,
        function: Callable[..., Any] | AsyncUDF[..., Any],
        *,
        output: list[Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Any,
    ) -> None:
        self.udf = function if isinstance(function, AsyncUDF) else async_pandas_udf(function, **options)
        self.loop: asyncio.AbstractEventLoop = loop or VirtualClockLoop()
        self.side_outputs: dict[OutputTag, list[Any]] = {}
        emits = ListOutput(self.side_outputs)
        self.output = emits.everything = [] if output is None else output
        with ExitStack() as undo:
            if loop is None:
                undo.callback(self.loop.close)
            self._chain = chain_of(self.udf, emits, self.loop)
            undo.pop_all()

    def feed(self, rows: Iterable[Any]) -> None:
        """Give a batch; an iterator is read as far as the engine has begun its rows."""
        self._chain.feed(elements_of(self.udf, rows))

    def end(self) -> None:
        """Say that no batch follows."""
        self._chain.end_of_input()

    def emitted(self, size: int) -> None:
        """Say that results of so many bytes are on their way to Spark, as its worker does."""
        self._chain.emitted(size)

    def taken(self) -> None:
        """Say that Spark has taken the oldest of them."""
        self._chain.taken()

    def run(self, *others: Engine, until: float | None = None) -> None:
        """Run, with others on the same loop, until all rows are done; at that time cancel what this one still runs."""
        try:
            self.loop.run_until_complete(self._together(others, until))
        finally:
            self.loop.close()

    async def _together(self, others: Iterable[Engine], until: float | None) -> None:
        running = [self._run(until), *(engine._run(None) for engine in others)]
        for error in await asyncio.gather(*running, return_exceptions=True):
            if error is not None:
                raise error

    async def _run(self, until: float | None) -> None:
        running = asyncio.ensure_future(self._chain.run())
        if until is not None:
            self.loop.call_at(until, running.cancel)
            await asyncio.wait([running])
        else:
            await running

    def look(self) -> None:
        """Bring the figures up to date, as before a message to a monitor."""
        for operator in self._chain.counted.values():
            operator.count_open()
            operator.sample(was_blocked=False)

    @property
    def counted(self) -> Counted:
        """What a message to a monitor would say of the function now."""
        return _counted(self._chain)


def run_tasks(
    server: Server | None,
    functions: Iterable[Callable[..., Any]],
    rows: Iterable[Any],
    *,
    begins: Sequence[float] = (),
    **options: Any,
) -> list[BaseException | list[Any]]:
    """Run one task of a job for each function, all over the same rows and in one virtual time.

    Args:
        server: the job's coordinator; None: the tasks share nothing.
        begins: when each task has its rows; at once unless given.

    Returns:
        For each task what it has emitted, or its error.
    """
    loop, space, given = VirtualClockLoop(), space_of_its_own(), [*rows]
    config = None if server is None else CoordinatorConfig(server.url, space, "of_the_job")
    engines = []
    for partition, function in enumerate(functions):
        environment = partial(TaskEnvironment, partition=partition, query=None if server is None else "query")
        plan = lambda *about: dataclasses.replace(plan_function_offline(*about), coordinator=config)  # noqa: E731
        with mock.patch.multiple(_runs, TaskEnvironment=environment, plan_function_offline=plan):
            engines.append(Engine(function, loop=loop, **options))
        if begins:
            loop.call_at(begins[partition], _give, engines[-1], given)
        else:
            _give(engines[-1], given)

    async def together() -> list[BaseException | None]:
        return await asyncio.gather(*(engine._run(None) for engine in engines), return_exceptions=True)

    def connection(*_: Any, **__: Any) -> OnGivenTime:
        assert server is not None
        return OnGivenTime(server, space=space)

    with mock.patch.object(client, "Coordinator", connection):
        ended = loop.run_until_complete(together())
    loop.close()
    return [engine.output if error is None else error for engine, error in zip(engines, ended, strict=True)]


def _give(engine: Engine, rows: Iterable[Any]) -> None:
    engine.feed(rows)
    engine.end()


@contextmanager
def started_streams() -> Iterator[list[Callable[[], Counted]]]:
    """For each chain that `run_stream` has started in the block, what a message to a monitor says of its functions."""
    started: list[Callable[[], Counted]] = []

    def starting(*arguments: Any) -> Chain:
        chain = Chain(*arguments)
        started.append(lambda: _counted(chain))
        return chain

    with mock.patch.object(_runs, "Chain", starting):
        yield started


def _counted(chain: Chain) -> Counted:
    return {
        name: {"metrics": operator.counters.totals.to_plain(), "timeline": operator.counters.timeline}
        for name, operator in chain.counted.items()
    }


def added_up(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What `run.metrics` says of the functions when these messages have arrived."""
    run = RunMetrics()
    for message in messages:
        run.add(json.loads(json.dumps(message)))
    return run.to_plain()
