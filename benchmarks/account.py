"""Where the time of a call goes, counted and not timed.

    python -m benchmarks.account                 # the engine and a plain program, calls that give way once
    python -m benchmarks.account --http          # the same with HTTP requests
    python -m benchmarks.account --instructions  # what the processor does for a call, by valgrind; takes a minute

For each function of Python: how often it is called and how many bytecodes it runs, for each call. C functions count as
one call each of the function that calls them. Other loops than asyncio's are written in C and cannot be counted so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from ._engine import engine
from ._http_server import http_server
from ._work import CAPACITY, pulled, suspends_once
from .cases.p5_http import calling, session_of

ROWS, REQUESTS = 2_000, 1_000
SHOWN = 0.05  # calls of a function for each row
FEW, MORE = 2_000, 12_000  # rows, of which the difference counts
MODES = ("ordered", "unordered")
Program = Callable[[Callable[[int], Awaitable[Any]], int], Awaitable[Any]]


def programs() -> dict[str, Program]:
    plain: dict[str, Program] = {"bare": lambda function, rows: pulled(function, range(rows), CAPACITY)}
    return plain | {mode: partial(through_engine, mode) for mode in MODES}


async def through_engine(mode: str, function: Callable[[int], Awaitable[Any]], rows: int) -> None:
    await engine(function, range(rows), mode).run()


class Account:
    """Calls and bytecodes of each function while a program runs, those of the interpreter's own set-up left out."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytecodes: Counter[str] = Counter()

    async def take(self, program: Callable[[], Awaitable[Any]], *, bytecodes: bool) -> None:
        watch, look = (sys.settrace, self._trace) if bytecodes else (sys.setprofile, self._profile)
        watch(look)  # type: ignore[arg-type]
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


async def taken(program: Program, rows: int, url: str | None = None) -> Account:
    """Of calls that give way once, or of requests to a server."""
    account = Account()
    async with AsyncExitStack() as stack:
        function = suspends_once if url is None else await stack.enter_async_context(asking(url))
        await program(function, rows)  # what comes once only, such as connections
        for bytecodes in (False, True):
            await account.take(partial(program, function, rows), bytecodes=bytecodes)
    return account


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    async with session_of() as session:
        yield calling(session, url)


def show(name: str, account: Account, rows: int) -> None:
    print(f"\n{name}: {account.calls.total() / rows:.1f} calls, {account.bytecodes.total() / rows:.0f} bytecodes a row")
    for function, count in account.bytecodes.most_common():
        if count / rows >= 1 and account.calls[function] / rows >= SHOWN:
            print(f"{count / rows:10.1f} {account.calls[function] / rows:8.2f}  {function}")


def instructions(name: str) -> float:
    """What the processor does for a row: the difference of two runs."""
    if shutil.which("valgrind") is None:
        raise SystemExit("--instructions needs valgrind")
    counter = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable]
    found = []
    for rows in (FEW, MORE):
        command = [*counter, "-m", "benchmarks.account", "--run", name, str(rows)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | NO_CHANCE).stderr
        (count,) = re.findall(r"I\s+refs:\s+([\d,]+)", told)
        found.append(int(count.replace(",", "")))
    return (found[1] - found[0]) / (MORE - FEW)


# No order by chance, and no thread of a numerics library that spins.
NO_CHANCE = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "ROWS"), help="what --instructions counts")
    options = parser.parse_args()
    if options.run:
        asyncio.run(programs()[options.run[0]](suspends_once, int(options.run[1])))  # type: ignore[arg-type]
        return
    for name, program in programs().items():
        if options.instructions:
            print(f"{name}: {instructions(name):,.0f} instructions a row", flush=True)
        elif options.http:
            with http_server(0.0) as url:
                show(name, asyncio.run(taken(program, REQUESTS, url)), REQUESTS)
        else:
            show(name, asyncio.run(taken(program, ROWS, None)), ROWS)


if __name__ == "__main__":
    main()
