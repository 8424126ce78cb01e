"""Where the time of a call goes, counted and not timed.

    python -m benchmarks.counts                 # the engine and a plain program, calls that give way once
    python -m benchmarks.counts --instructions  # what the processor does for a call

For each function of Python: how often it is called and how many bytecodes it runs, for each row. C functions count as
one call each of the function that calls them. Other loops than asyncio's are written in C and cannot be counted so.
Instructions are those of a program on uvloop, by `perf stat` where the processor lets it count, else by valgrind.
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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa

from asyncudf import ResultStore

from ._engine import column, engine
from ._work import CAPACITY, batches, instant, pulled, run, suspends_once

__all__ = ("PERF", "PROGRAMS", "Account", "counter", "instructions", "taken", "through_engine")

ROWS = 2_000
SHOWN = 0.05  # calls of a function for each row
FEW, MORE = 2_000, 12_000  # rows, of which the difference counts
STORED = MORE  # results that are in the store before a program runs
Program = Callable[[int], Awaitable[Any]]  # of the number of rows


async def through_engine(function: Callable[[int], Awaitable[Any]], mode: str, rows: int, **options: Any) -> None:
    await engine(function, range(rows), mode, **options).run()


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


_store: list[tempfile.TemporaryDirectory[str]] = []  # once it is filled


async def hits(rows: int) -> None:
    """A column of which the store has all results."""
    if not _store:
        folder = tempfile.TemporaryDirectory()
        await through_store(folder, STORED)
        _store.append(folder)
    await through_store(_store[0], rows)


async def through_store(folder: tempfile.TemporaryDirectory[str], rows: int) -> None:
    await column(instant, range(rows), store=ResultStore.disk(folder.name), version="1").run()


PROGRAMS: dict[str, Program] = {
    "bare": lambda rows: pulled(suspends_once, range(rows), CAPACITY),
    "ordered": partial(through_engine, suspends_once, "ordered"),
    "unordered": partial(through_engine, suspends_once, "unordered"),
    "bare, instant": loop,
    "ordered, instant": partial(through_engine, instant, "ordered"),
    "Arrow UDF": arrow_udf,
    "hit": hits,
}


class Account:
    """Calls and bytecodes of each function while a program runs, those of the interpreter's own set-up left out."""

    def __init__(self) -> None:
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

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.bytecodes[frame.f_code.co_qualname] += 1
        return self._trace


async def taken(program: Program, rows: int) -> Account:
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
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "ROWS"), help="what --instructions counts")
    options = parser.parse_args()
    if options.run:
        run(PROGRAMS[options.run[0]](int(options.run[1])))  # type: ignore[arg-type]
        return
    if options.instructions and not counter():
        raise SystemExit("--instructions needs perf or valgrind")
    for name, program in PROGRAMS.items():
        if options.instructions:
            print(f"{name}: {instructions(name):,.0f} instructions a row by {counter()[0]}", flush=True)
        else:
            show(name, asyncio.run(taken(program, ROWS)), ROWS)


if __name__ == "__main__":
    main()
