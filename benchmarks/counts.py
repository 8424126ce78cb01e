"""Where the time of a call goes, counted and not timed.

    python -m benchmarks.counts                     # all programs
    python -m benchmarks.counts bare ordered        # the engine and a plain program, calls that give way once
    python -m benchmarks.counts --instructions hit  # what the processor does for a row

For each function of Python: how often it is called and how many bytecodes it runs, for each row. C functions count as
one call each of the function that calls them. Programs run on the virtual clock, on which a busy machine changes no
count; loops that are written in C cannot be counted so. Instructions are those of a program on uvloop, by `perf stat`
where the processor lets it count, else by valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from asyncudf import CircuitBreaker, RateLimit, ResultStore, RetryStrategy
from asyncudf.testing import MemoryStore, VirtualClockLoop

from ._engine import column, engine, with_figures
from ._work import CAPACITY, batches, instant, pulled, run, suspends_once

__all__ = ("PERF", "PROGRAMS", "ROWS", "Account", "counted", "counter", "instructions")

ROWS = 2_000
SHOWN = 0.05  # calls of a function for each row
FEW, MORE = 2_000, 12_000  # rows, of which the difference counts
STORED = MORE  # results that are in the store before a program runs
Program = Callable[[int], Awaitable[Any]]  # of the number of rows


async def loop(rows: int) -> None:
    """A plain program for calls that return at once."""
    results = []
    for x in range(rows):
        results.append(await instant(x))  # noqa: PERF401 - a plain program need not be clever


async def arrow_udf(rows: int) -> None:
    """What Spark's own worker does for a row of an Arrow UDF."""
    for batch in batches(range(rows)):
        pa.array([plain(x) for x in pa.array(batch, pa.int64()).to_pylist()], pa.int64())


def plain(x: int) -> int:
    return x


async def through_engine(
    rows: int,
    function: Callable[[], Callable[[int], Awaitable[Any]]] = lambda: suspends_once,
    options: Callable[[], dict[str, Any]] = dict,
    mode: str = "ordered",
) -> None:
    """The function and what is shared by its rows are made anew for each run."""
    await with_figures(engine(function(), range(rows), mode, **options()))


async def through_column(values: Sequence[int | None], **options: Any) -> None:
    await with_figures(column(instant, values, **options))


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def new_folder() -> str:
    return tempfile.mkdtemp(dir=folder().name)


class Found:
    """A program whose store has all results; the first run fills it."""

    def __init__(self, program: Callable[[int, dict[str, Any]], Awaitable[Any]], make: Callable[[], ResultStore]):
        self._program, self._make = program, make
        self._options: dict[str, Any] = {}

    async def __call__(self, rows: int) -> None:
        if not self._options:
            self._options = {"store": self._make(), "version": "1"}
            await self._program(STORED, self._options)
        await self._program(rows, self._options)


class Failing:
    """A service that fails at the first call of each tenth row."""

    def __init__(self) -> None:
        self.failed: set[int] = set()

    async def __call__(self, x: int) -> int:
        await asyncio.sleep(0)
        if x % 10 == 0 and x not in self.failed:
            self.failed.add(x)
            raise ConnectionError
        return x


class AnsweredError(Exception):
    status = 500


async def not_reached(x: int) -> int:
    raise ConnectionError(x)


async def answers_500(x: int) -> int:
    raise AnsweredError(x)


class RefusedError(Exception):
    status = 429
    headers = {"Retry-After": "0.1"}


class RefusesOnce:
    """A service that refuses the first call of all: no other begins for a while."""

    has_refused = False

    async def __call__(self, x: int) -> int:
        await asyncio.sleep(0)
        if not self.has_refused:
            self.has_refused = True
            raise RefusedError
        return x


# In order, the other rows would wait for the one that was refused, which costs more.
refused = partial(through_engine, function=RefusesOnce, mode="unordered")
RETRY = partial(RetryStrategy.fixed_delay, attempts=4, delay=0.0)
WITH: dict[str, Program] = {
    "retry": partial(through_engine, options=lambda: {"retry": RETRY()}),
    "retry, one row in ten fails": partial(through_engine, function=Failing, options=lambda: {"retry": RETRY()}),
    'on_error="null"': partial(through_engine, options=lambda: {"on_error": "null"}),
    'on_error="null", one row in ten fails': partial(
        through_engine, function=Failing, options=lambda: {"on_error": "null"}
    ),
    'on_error="null", no service': partial(
        through_engine, function=lambda: not_reached, options=lambda: {"on_error": "null"}
    ),
    'on_error="null", answers of 500': partial(
        through_engine, function=lambda: answers_500, options=lambda: {"on_error": "null"}
    ),
    "attempt_timeout": partial(through_engine, options=lambda: {"attempt_timeout": 1.0}),
    "rate_limit": partial(through_engine, options=lambda: {"rate_limit": RateLimit(10**9)}),
    "breaker": partial(through_engine, options=lambda: {"breaker": CircuitBreaker()}),
    "job_capacity": partial(through_engine, options=lambda: {"job_capacity": 1_000}),
    "max_calls": partial(through_engine, options=lambda: {"max_calls": 10**6}),
    'capacity="auto"': partial(through_engine, options=lambda: {"capacity": "auto"}),
    "store, missed": partial(through_engine, options=lambda: {"store": MemoryStore(), "version": "1"}),
    "store on disk, missed": partial(
        through_engine, options=lambda: {"store": ResultStore.disk(new_folder()), "version": "1"}
    ),
    "store, found": Found(lambda rows, options: through_engine(rows, options=lambda: options), MemoryStore),
}
PROGRAMS: dict[str, Program] = {
    "bare": lambda rows: pulled(suspends_once, range(rows), CAPACITY),
    "ordered": through_engine,
    "unordered": partial(through_engine, mode="unordered"),
    "bare, instant": loop,
    "ordered, instant": partial(through_engine, function=lambda: instant),
    "unordered, instant": partial(through_engine, function=lambda: instant, mode="unordered"),
    "one at a time": partial(through_engine, options=lambda: {"capacity": 1}, mode="unordered"),
    "one at a time, after a pause": partial(refused, options=lambda: {"capacity": 1}),
    "one at a time, after a pause, with rate_limit": partial(
        refused, options=lambda: {"capacity": 1, "rate_limit": RateLimit(10**9)}
    ),
    **{f"with {name}": program for name, program in WITH.items()},
    "Arrow UDF": arrow_udf,
    "column": lambda rows: through_column(range(rows)),
    'column, NULL with on_null_input="null"': lambda rows: through_column([None] * rows, on_null_input="null"),
    "hit": Found(lambda rows, options: through_column(range(rows), **options), lambda: ResultStore.disk(new_folder())),
}


class Account:
    """Calls and bytecodes of each function while a program runs, those of the interpreter's own set-up left out."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()  # as `calls`, without those of C functions
        self.calls: Counter[str] = Counter()
        self.bytecodes: Counter[str] = Counter()

    async def take(self, program: Callable[[], Awaitable[Any]], *, bytecodes: bool) -> None:
        watch, look = (sys.settrace, self._trace) if bytecodes else (sys.setprofile, self._profile)
        watch(look)
        try:
            await program()
        finally:
            watch(None)

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls[frame.f_code.co_qualname] += 1
        if event == "call":
            self.entered[frame.f_code.co_qualname] += 1

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.bytecodes[frame.f_code.co_qualname] += 1
        return self._trace


def counted(name: str, rows: int = ROWS) -> Account:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(_taken(PROGRAMS[name], rows))


async def _taken(program: Program, rows: int) -> Account:
    account = Account()
    await program(rows)  # what comes once only
    for bytecodes in (False, True):
        await account.take(partial(program, rows), bytecodes=bytecodes)
    return account


def show(name: str, account: Account, rows: int) -> None:
    print(f"\n{name}: {account.calls.total() / rows:.1f} calls, {account.bytecodes.total() / rows:.0f} bytecodes a row")
    for function, count in account.bytecodes.most_common():
        if count / rows >= 1 and account.calls[function] / rows >= SHOWN:
            print(f"{count / rows:10.1f} {account.calls[function] / rows:8.2f}  {function}")


# No order by chance, and no thread of a numerics library that spins.
NO_CHANCE = os.environ | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
PERF = ("perf", "stat", "-x,", "-e", "instructions:u")
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


@functools.cache
def counter() -> tuple[str, ...]:
    """The command that counts instructions here; nothing if there is none."""
    if shutil.which("perf"):
        told = subprocess.run([*PERF, "true"], capture_output=True, text=True, check=False).stderr
        if re.match(r"\d+,", told):
            return PERF
    return VALGRIND if shutil.which("valgrind") else ()


@functools.cache
def instructions(name: str) -> float:
    """What the processor does for a row: the difference of two runs."""
    counts = []
    for rows in (FEW, MORE):
        command = [*counter(), sys.executable, "-m", "benchmarks.counts", "--run", name, str(rows)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, env=NO_CHANCE).stderr
        (count,) = re.findall(r"^(\d+),.*instructions:u|I\s+refs:\s+([\d,]+)", told, re.MULTILINE)
        counts.append(int("".join(count).replace(",", "")))
    return (counts[1] - counts[0]) / (MORE - FEW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*PROGRAMS], metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "ROWS"), help="what --instructions counts")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PROGRAMS):
        parser.error(f"no programs: {', '.join(sorted(unknown))}")
    if options.run:
        run(PROGRAMS[options.run[0]](int(options.run[1])))  # type: ignore[arg-type]
        return
    if options.instructions and not counter():
        raise SystemExit("--instructions needs perf or valgrind")
    for name in options.names:
        if options.instructions:
            print(f"{name}: {instructions(name):,.0f} instructions a row by {counter()[0]}", flush=True)
        else:
            show(name, counted(name), ROWS)


if __name__ == "__main__":
    main()
