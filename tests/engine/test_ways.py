"""Rows take one of three ways through an operator, and nobody can tell which: random programs run through all of them.

The fast path (`fast_path.py`) calls rows that need no place; the plain way (`plain.py`) those whose first attempt
succeeds; the general way (`lifecycle.py`) all others. Here each program runs as it is, then without the fast path, then
by the general way alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from asyncudf import AsyncFunction, ResultFuture, RetryStrategy, RuntimeContext
from asyncudf._engine.calls.lifecycle import RowLifecycle
from asyncudf._engine.operators import async_wait, fast_path
from asyncudf._engine.operators.async_wait import AsyncWaitOperator
from asyncudf._engine.operators.fast_path import FastPath
from asyncudf._functions.async_function import FAIL_TASK
from asyncudf.http import error_for
from asyncudf.queues import StreamRecord, Watermark
from asyncudf.testing import VirtualClockLoop, _runs
from tests.contract.test_queues_models import OrderedMachine, UnorderedMachine
from tests.kit.engines import Engine
from tests.kit.thorough import times

Patch = pytest.MonkeyPatch


def as_it_is(patch: Patch) -> None:
    """Nothing is changed."""


def without_fast_path(patch: Patch) -> None:
    patch.setattr(FastPath, "suits", lambda lifecycle, output: False)


def by_the_general_way(patch: Patch) -> None:
    def returning(lifecycle: RowLifecycle, complete: Any) -> Callable[..., float]:
        def returned(slot: Any, attempt: Any, result: Any) -> float:
            lifecycle.coroutine_ended(slot, attempt, [(result,)], None)
            return lifecycle.clock()

        return returned

    patch.setattr(async_wait, "returning", returning)
    patch.setattr(AsyncWaitOperator, "may_call_rows", lambda operator: False)


WAYS = {"fast path": as_it_is, "plain": without_fast_path, "general": by_the_general_way}

# What a call does in an attempt, step by step, before it ends. "turn" gives way to the loop without a wait; "block"
# keeps the loop, and "work" for less than its turn; "set" leaves a context variable behind, "uncancel" a cancellation
# that was taken back; "disturb" cancels another call that waits; "mail" is a message to the loop; "look" is a snapshot;
# "fail" ends the task. Some programs have only few of these, so that calls that return at once are many.
STEPS = ("wait", "wait", "turn", "block", "work", "set", "uncancel", "disturb", "mail", "look", "fail")
ENDS = ("return", "return", "return", "raise", "cancel", "refuse", "mismatch")
MARKER, NULL = "marker", "null"
KINDS = ("function", "function", "function", "function", "function", "asks", "many", "future")
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=None)
LIMIT = 7.01  # seconds


class Program(NamedTuple):
    batches: list[list[Any]]
    kind: str
    mode: str
    capacity: int
    spare: int | None  # places in the queue beside those of the calls; None: memory is the bound
    burst: int  # rows that are called in one turn of the loop
    timeout: float | None
    attempt_timeout: float | None
    attempts: int
    on_error: str
    nulls: bool  # whether NULL is answered without a call
    stops: float | None  # when the consumer has had enough
    takes: int | None  # after so many results the output takes no more for a while

    @property
    def steps(self) -> set[str]:
        rows = [row for batch in self.batches for row in batch if row not in (MARKER, NULL)]
        return {step for row in rows for steps, _ in row for step in steps}

    @property
    def ends(self) -> set[str]:
        rows = [row for batch in self.batches for row in batch if row not in (MARKER, NULL)]
        return {end for row in rows for _, end in row}

    @property
    def is_a_race(self) -> bool:
        """Whether it depends on which of two things comes first that are due in one turn of the loop."""
        # A wait that was cancelled ends in the next turn.
        return self.is_open or ("wait" in self.steps and self.cancels)

    @property
    def is_open(self) -> bool:
        """Whether also what calls do may depend on that: what they find, and whom they disturb."""
        waits = "wait" in self.steps or "refuse" in self.ends or self.attempts > 1 or len(self.batches) > 1
        others = self.stops is not None or self.takes is not None
        return "turn" in self.steps or (bool({"block", "work"} & self.steps) and (waits or others))

    @property
    def cancels(self) -> bool:
        return bool(self.steps & {"disturb", "uncancel"})


def program_of(seed: int) -> Program:
    rng = random.Random(seed)
    steps, ends = rng.sample(STEPS, rng.randint(0, 4)), rng.sample(ENDS, rng.randint(1, 3))
    at_once = rng.choice((0.3, 0.7, 0.9))  # the share of attempts that return at once

    def attempt() -> tuple[tuple[str, ...], str]:
        if rng.random() < at_once or not steps:
            return (), "return" if rng.random() < 0.8 else rng.choice(ends)
        return tuple(rng.choices(steps, k=rng.randint(1, 2))), rng.choice(ends)

    others = [MARKER] * rng.randint(0, 2) + [NULL] * rng.randint(0, 2)

    def element() -> Any:
        if others and rng.random() < 0.25:
            return rng.choice(others)
        return tuple(attempt() for _ in range(rng.randint(1, 2)))  # an attempt after the last one is as that

    return Program(
        batches=[[element() for _ in range(rng.randint(0, 12))] for _ in range(rng.randint(1, 3))],
        kind=rng.choice(KINDS),
        mode=rng.choice(("ordered", "unordered")),
        capacity=rng.choice((1, 2, 3, 20)),
        spare=rng.choice((0, 1, 4, 50, None)),
        burst=rng.choice((1, 2, 3, 200)),
        timeout=rng.choice((None, LIMIT, 2.003)),
        attempt_timeout=rng.choice((None, None, 1.502)),
        attempts=rng.choice((1, 1, 2, 3)),
        on_error=rng.choice(("null", "capture", "capture", "dead_letter", "raise")),
        nulls=rng.random() < 0.5,
        stops=rng.choice((None, None, None, 1.237)),
        takes=rng.choice((None, None, None, 1, 3)),
    )


class Begun(NamedTuple):
    """What a call sees when it begins."""

    number: int
    attempt: int
    time: float
    variable: Any
    emitted: int  # results that have left


class Told(NamedTuple):
    """What can be seen of a program."""

    output: list[Any]  # with the time of each
    calls: list[Any]  # what they see when they begin, and what they look at
    counted: dict[str, Any]
    sides: list[Any]
    error: str
    mail: list[int]  # for each message, how many calls have begun before it came

    @property
    def seen(self) -> list[Any]:
        """What calls have found in the context variable."""
        return [call.variable for call in self.calls if isinstance(call, Begun)]


class Played:
    """The function of a program; it notes what its calls see."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.engine: Engine
        self.calls: list[Any] = []
        self.mail: list[int] = []
        self.attempts: Counter[int] = Counter()
        self.waiting: dict[int, asyncio.Task[Any]] = {}

    async def play(self, number: int, row: Any) -> int | str:
        """One attempt of a row."""
        self.attempts[number] += 1
        attempt = self.attempts[number]
        loop = asyncio.get_running_loop()
        self.calls.append(Begun(number, attempt, loop.time(), VARIABLE.get(), len(self.engine.output)))
        steps, end = row[min(attempt, len(row)) - 1]
        for place, step in enumerate(steps):
            await self.step(step, number, 1 + 0.0137 * number + 0.00171 * attempt + 0.000013 * place)
        if end == "raise":
            raise ValueError(number)
        if end == "cancel":
            raise asyncio.CancelledError
        if end == "refuse" and attempt <= 2:
            raise error_for(429, retry_after=1.25 + 0.0031 * number)
        return "no number" if end == "mismatch" else number

    async def step(self, step: str, number: int, seconds: float) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert isinstance(loop, VirtualClockLoop)
        assert task is not None
        if step == "wait":
            self.waiting[number] = task
            try:
                await asyncio.sleep(seconds)
            finally:
                self.waiting.pop(number, None)
        elif step == "turn":
            await asyncio.sleep(0)
        elif step == "block":
            loop.block(seconds)
        elif step == "work":
            loop.block(0.003)
        elif step == "fail":
            FAIL_TASK.get()()("is wrong")
        elif step == "set":
            VARIABLE.set(number)
        elif step == "uncancel":
            task.cancel()
            task.uncancel()
        elif step == "disturb" and self.waiting:
            # It waits no more: or whom the next one disturbs would depend on whether the loop has had a turn since.
            self.waiting.pop(min(self.waiting)).cancel()
        elif step == "mail":
            begun = len(self.calls)
            loop.call_soon_threadsafe(lambda: self.mail.append(len(self.calls) - begun))
        elif step == "look":
            head = self.engine._chain.head
            assert isinstance(head, AsyncWaitOperator)
            self.calls.append([getattr(one, "value", one) for one in head.snapshot_state()])

    def function(self) -> Any:
        kind, play = self.program.kind, self.play

        async def function(number: int | None, row: Any) -> int | None:
            return None if number is None else await play(number, row)  # type: ignore[return-value]

        async def asks(number: int | None, row: Any, context: RuntimeContext) -> int | None:
            if number is None:
                return None
            found = await play(number, row)
            self.calls.append((context.attempt_number, context.remaining()))
            return found  # type: ignore[return-value]

        async def many(number: int | None, row: Any) -> AsyncIterator[int]:
            if number is not None:
                yield number
                yield await play(number, row)  # type: ignore[misc]

        class Completes(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                number, row = value
                if number is None:
                    result_future.complete([])
                    return
                result_future.complete([await play(number, row)])
                if number % 3 == 0:
                    await asyncio.sleep(2)

        return {"function": function, "asks": asks, "many": many, "future": Completes()}[kind]


class Output(list[Any]):
    """Notes when results leave; after some of them Spark takes no more for a while."""

    def __init__(self, takes: int | None) -> None:
        super().__init__()
        self.takes = takes
        self.engine: Engine

    def append(self, result: Any) -> None:
        super().append((self.engine.loop.time(), result))
        if self.takes is not None and len(self) % self.takes == 0:
            self.engine.emitted(2**30)
            self.engine.loop.call_later(0.777, self.engine.taken)


def told(program: Program, change: Callable[[Patch], None]) -> Told:
    """Run a program."""
    with Patch.context() as patch:
        change(patch)
        for module in (async_wait, fast_path):
            patch.setattr(module, "BURST", program.burst)
        if program.takes is not None:  # then `Output` does more for a result
            patch.setattr(_runs, "OpenBatch", lambda *_: None)
        return _told(program)


def _told(program: Program) -> Told:
    played, output = Played(program), Output(program.takes if program.spare is None else None)
    options: dict[str, Any] = {}
    if program.spare is not None:
        options["queue_size"] = program.capacity + program.spare
    if program.attempts > 1 and program.timeout is not None:
        options["retry"] = RetryStrategy.fixed_delay(program.attempts, 0.531)
    if program.nulls:
        options["on_null_input"] = "null"
    if program.kind not in ("many", "future"):
        options["returnType"] = "int"
    engine = Engine(
        played.function(), output=output, output_mode=program.mode, capacity=program.capacity, timeout=program.timeout,
        attempt_timeout=program.attempt_timeout, on_error=program.on_error, **options,
    )  # fmt: skip
    played.engine = output.engine = engine
    numbers = itertools.count()
    for place, batch in enumerate(program.batches):
        rows = [element_of(one, next(numbers)) for one in batch]
        engine.loop.call_at(0.911 * place, engine.feed, rows)
    engine.loop.call_at(0.911 * len(program.batches), engine.end)
    error = ""
    try:
        engine.run(until=program.stops)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    engine.look()
    (counted,) = engine.counted.values()
    sides = sorted(map(repr, itertools.chain(*engine.side_outputs.values())))
    return Told([*output], played.calls, dict(counted["metrics"]), sides, error, played.mail)


def element_of(element: Any, number: int) -> Any:
    if element == MARKER:
        return Watermark(number)
    if element == NULL:
        return StreamRecord((None, None), number)
    return StreamRecord((number, element), number)


# Figures that depend on what is there between two turns of the loop, where a cancelled call is yet to end, where a slot
# that gives way counts as a call in flight, and where the general way gives the queue a result that leaves it at once.
OF_A_MOMENT = ("bytes_peak", "in_flight_peak", "queued_peak", "first", "last")


@pytest.mark.parametrize("first", times(6, 200))
def test_a_program_is_the_same_by_each_way(first: int) -> None:
    for seed in range(50 * first, 50 * first + 50):
        check(program_of(seed))


def check(program: Program) -> None:
    found = {name: told(program, change) for name, change in WAYS.items()}
    seen = [variable for one in found.values() for variable in one.seen if variable is not None]
    assert not seen, f"a row sees another's variables: {program}"
    # By the general way rows that need no call pass those that are called; elements enter a queue whose rows cannot
    # leave; a row that was done when the task had failed does not leave.
    is_loose = program.takes is not None or program.cancels or "fail" in program.steps
    is_loose |= program.nulls and (program.mode == "unordered" or program.on_error == "raise")
    by_a_run, plainly, generally = found.values()
    gives_way = program.burst < sum(map(len, program.batches))
    exact = partial(comparable, program=program, of_a_moment=not (program.cancels or gives_way))
    assert exact(by_a_run) == exact(plainly), program
    seen_by_all = partial(comparable, program=program, of_a_moment=False, is_loose=is_loose)
    assert seen_by_all(by_a_run) == seen_by_all(generally), program


def comparable(found: Told, program: Program, *, of_a_moment: bool, is_loose: bool = False) -> Any:
    """What has to be the same by each way."""
    counted = {
        name: rounded(figure) for name, figure in found.counted.items() if of_a_moment or name not in OF_A_MOMENT
    }
    if not (program.is_a_race or is_loose):
        return found._replace(mail=[], counted=counted)
    if program.stops is not None or program.on_error == "raise" or "fail" in program.steps:
        return found.error
    if program.is_open and "disturb" in program.steps:
        return found.counted["rows"], found.error
    results = [without_times(result) for _, result in found.output]
    rows = sorted(map(repr, results)) if program.mode == "unordered" else results
    return rows, {name: counted[name] for name in ("rows", "results", "failures", "dead_letters")}, found.error


def rounded(figure: Any) -> Any:
    """Seconds that were added up in another order."""
    if isinstance(figure, dict):
        return {name: rounded(one) for name, one in figure.items()}
    if isinstance(figure, list):
        return [*map(rounded, figure)]
    return round(figure, 6) if isinstance(figure, float) else figure


def without_times(result: Any) -> Any:
    """A result, of an error only its type: when it came may depend on the race."""
    return (result["value"], result["error"] and result["error"]["type"]) if isinstance(result, dict) else result


class Model:
    """An operator in a few lines: a line of elements, as in the models of the queues, and times at which calls end."""

    # line: as in the models of the queues; ends: when calls end, with their places in the line and what they come to

    def __init__(self, program: Program) -> None:
        assert program.spare is not None
        self.program, self.free, self.most = program, program.capacity, program.capacity + program.spare
        self.next_to_leave: Any = {"ordered": OrderedMachine, "unordered": UnorderedMachine}[program.mode].next_to_leave
        self.line: list[list[Any]] = []
        self.given: list[tuple[int, Any]] = []
        self.ends: list[tuple[float, int, list[Any], Any]] = []
        self.output: list[tuple[float, Any]] = []
        self.begun: list[tuple[float, int]] = []
        self.moments = itertools.count()

    def run(self) -> None:
        numbers, program = itertools.count(), self.program
        batches = [
            (0.911 * place, [(next(numbers), one) for one in batch]) for place, batch in enumerate(program.batches)
        ]
        while batches or self.ends:
            if batches and not (self.ends and self.ends[0][0] < batches[0][0]):
                now, more = batches.pop(0)
                self.given += more
            else:
                now, _, slot, result = heapq.heappop(self.ends)
                self.free += 1
                self.complete(now, slot, result)
            while self.given and len(self.line) < self.most and self.takes(now):
                pass

    def takes(self, now: float) -> bool:
        """Take the next element, if it can be taken."""
        number, element = self.given[0]
        is_marker, is_answered = element == MARKER, element == NULL and self.program.nulls
        if not (is_marker or is_answered or self.free):
            return False
        self.given.pop(0)
        slot = [Watermark(number) if is_marker else StreamRecord(number), [] if is_marker else None, next(self.moments)]
        self.line.append(slot)
        if is_marker:
            self.leave(now)
        elif is_answered:
            self.complete(now, slot, (None, None))
        else:
            self.call(now, slot, number, ((), "null") if element == NULL else element[0])
        return True

    def call(self, now: float, slot: list[Any], number: int, attempt: Any) -> None:
        steps, end = attempt
        if end != "null":
            self.begun.append((round(now, 6), number))
        seconds = sum(1 + 0.0137 * number + 0.00171 + 0.000013 * place for place, _ in enumerate(steps))
        errors = {"raise": "ValueError", "cancel": "CancelledError", "mismatch": "ResultError"}
        result = (number if end == "return" else None, errors.get(end))
        for limit in (self.program.attempt_timeout, self.program.timeout):
            if limit is not None and seconds > limit:
                seconds, result = limit, (None, "AsyncTimeoutError")
        if seconds:
            self.free -= 1
            heapq.heappush(self.ends, (now + seconds, next(self.moments), slot, result))
        else:
            self.complete(now, slot, result)

    def complete(self, now: float, slot: list[Any], result: Any) -> None:
        slot[1], slot[2] = [result], next(self.moments)
        self.leave(now)

    def leave(self, now: float) -> None:
        while (slot := self.next_to_leave(self)) is not None:
            self.line = [one for one in self.line if one is not slot]
            self.output += [(round(now, 6), one) for one in slot[1] or [slot[0]]]


def plain_program_of(seed: int) -> Program:
    """One that the model knows: calls that return, wait and fail, without a second attempt."""
    rng, program = random.Random(seed), program_of(seed)
    attempts = [*[((), "return")] * 6, ((), "raise"), ((), "mismatch")]
    attempts += [(("wait",) * n, end) for n in (1, 2) for end in ("return", "return", "raise", "cancel", "mismatch")]
    elements = [(one,) for one in attempts] + [MARKER] * rng.randint(0, 6) + [NULL] * rng.randint(0, 6)
    return program._replace(
        batches=[rng.choices(elements, k=rng.randint(0, 12)) for _ in program.batches], kind="function", attempts=1,
        spare=rng.choice((0, 1, 4, 50)), on_error="capture", stops=None, takes=None,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", times(1, 70))
def test_a_program_does_what_the_model_does(first: int, way: str) -> None:
    for seed in range(50 * first, 50 * first + 50):
        program = plain_program_of(seed)
        model = Model(program)
        model.run()
        found = told(program, WAYS[way])
        output = [(round(time, 6), without_times(result)) for time, result in found.output]
        if program.mode == "unordered":  # whose calls end in one moment leave in any order
            output, model.output = in_segments(output), in_segments(model.output)
        assert output == model.output, program
        assert [(round(call.time, 6), call.number) for call in found.calls] == model.begun, program


def in_segments(output: list[Any]) -> list[Any]:
    """What has left in the order of its times, and of its results where these are equal; markers stay between."""
    segments = itertools.groupby(output, lambda one: isinstance(one[1], Watermark))
    return [one for _, segment in segments for one in sorted(segment, key=lambda one: (one[0], repr(one[1])))]
