"""Services that refuse calls, are away, recover or start slowly, and recordings of who called them when.

A recording is the same in each run, so two of them compare two versions of the code:

    python -m tests.kit.unwell_services --alone 1900 --shared 100 > recorded
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from asyncudf import CircuitBreaker, RetryStrategy, http
from tests.kit.coordinators import Server, start_server
from tests.kit.engines import run_tasks
from tests.kit.limited import now
from tests.kit.refusing_services import CAPACITY, LATENCY, SERVICES, Refusing, bucket, window

__all__ = ("ALONE", "SHARED", "record_alone", "record_shared")

ALONE, SHARED = 60, 12  # random services that are recorded unless said otherwise
MOST_ROWS = 1000  # of a service that is not random


class Call(NamedTuple):
    """What a service sees of a call when it begins."""

    row: int
    at: float
    in_flight: int  # that it has taken, with this one if it takes it
    chance: random.Random  # of this attempt at the row, whichever call of a moment comes first


Trouble = Callable[[], BaseException | None]  # the error of a call; None: it hangs
Behaviour = Callable[[Call], Trouble | None]  # None: it takes the call


@dataclasses.dataclass(frozen=True)
class Unwell:
    """A service, and the job that calls it.

    Args:
        behaviours: of the service; the first that does not take a call decides.
        latency: seconds of a call that is taken.
        trouble_latency: the same of one that is not taken.
        begins: when each task has its rows.
        is_shared: whether the tasks have a coordinator.
    """

    behaviours: Sequence[Behaviour]
    latency: Callable[[random.Random], float]
    trouble_latency: Callable[[random.Random], float]
    rows: int
    begins: Sequence[float]
    is_shared: bool
    options: dict[str, Any]


class Recording(NamedTuple):
    """A job: its calls, what they came to, and a digest of all of them with times and rows, and of the results."""

    digest: str
    calls: int
    refused: int
    failed: int  # otherwise
    given_up: int  # rows without a result
    seconds: float

    def __str__(self) -> str:
        return " ".join([self.digest, *map(str, self[1:-1]), f"{self.seconds:.3f}"])


def unwell(seed: int, *, is_shared: bool) -> Unwell:
    """The service of a seed; most are called by one task, those that are shared by several with a coordinator.

    With a coordinator all ends soon: each second of it is four questions of each task, to a real server.
    """
    rng = random.Random(f"service {seed}, {is_shared}")
    tasks = rng.choice([2, 2, 3, 4]) if is_shared or rng.random() < 0.1 else 1
    latency = rng.choice([0.005, 0.02, 0.1] if is_shared else [0.005, 0.02, 0.1, 0.5, 2.0])
    spread = rng.choice([0.01, 0.01, 0.3, 0.8])
    capacity = rng.choice([1, 2, 5, 10, 20, 50, 50, 100])
    per_second = tasks * capacity / latency  # calls, of a service that is well
    rows = rng.randint(30, 400 // tasks)
    length = max(5.0, tasks * rows / per_second)
    count = rng.choice([1, 1, 1, 2, 2, 3])
    kinds = rng.sample([_at_random, _strict, _few_at_once, _away, _away, _flapping, _slow_start, _bad_rows], count)
    behaviours = [kind(rng, per_second, length) for kind in kinds]
    options = {"capacity": capacity, **_options(rng, latency)}
    if is_shared:
        options["timeout"] = min(10.0, options["timeout"])
        if "breaker" in options:
            options["breaker"] = dataclasses.replace(options["breaker"], open_for=0.5, max_open=15.0)
    trouble = rng.choice([0.001, latency, latency, 5 * latency])

    # No two are equal: what comes first of two things that happen at one time may change with any part of the engine.
    def about(seconds: float, spread: float, chance: random.Random) -> float:
        return round(seconds * chance.lognormvariate(-(spread**2) / 2, spread), 6)

    return Unwell(
        behaviours,
        partial(about, latency, spread),
        partial(about, trouble, 0.01),
        rows,
        [0.0, *(rng.choice([0.0, 0.0, 1.0, length / 2]) for _ in range(tasks - 1))],
        is_shared,
        options,
    )


def refusing(job: Refusing) -> Unwell:
    """One of the services that have a test of their own, for fewer rows."""
    service = job.service()

    def behaviour(call: Call) -> Trouble | None:
        wait = service(call.row, call.at)
        return None if wait is None else lambda: http.ThrottledError(429, retry_after=wait)

    rows = min(MOST_ROWS, job.rows)
    options = {"capacity": CAPACITY, "output_mode": "unordered"}
    return Unwell([behaviour], lambda _: LATENCY, lambda _: LATENCY, rows, [0.0], False, options)


def _options(rng: random.Random, latency: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "timeout": rng.choice([5.0, 30.0, 120.0, 120.0, 600.0]),
        "output_mode": rng.choice(["ordered", "unordered"]),
        "on_error": rng.choice(["null", "null", "null", "raise", "capture"]),
        "max_failures": 1.0,  # and not the first rows that fail
    }
    if options["on_error"] == "raise":
        del options["max_failures"]
    if rng.random() < 0.6:
        open_for = rng.choice([0.5, 5.0, 10.0])
        options["breaker"] = CircuitBreaker(
            failure_rate=rng.choice([0.3, 0.5, 0.5, 0.9]),
            window=rng.choice([3, 8, 20, 20]),
            open_for=open_for,
            max_open=open_for * rng.choice([3, 10, 60]),
        )
    if rng.random() < 0.5:
        options["attempt_timeout"] = min(options["timeout"], rng.choice([5 * latency, 10.0]))
    if (which := rng.random()) < 0.3:
        options["retry"] = RetryStrategy.fixed_delay(rng.choice([2, 5]), rng.choice([0.1, 1.0]))
    elif which < 0.6:
        options["retry"] = RetryStrategy.exponential_backoff(
            rng.choice([3, 8]), max_retry_after=rng.choice([0.0, 10.0, 300.0])
        )
    return options


def _refusal(rng: random.Random) -> Callable[[float], Trouble]:
    """How the service refuses a call that it would take after so many seconds."""
    status, kind = rng.choice([(429, "right"), (429, "right"), (429, "fixed"), (429, "none"), (503, "right")])
    fixed = rng.choice([0.2, 1.0, 5.0, 60.0])
    if kind == "none":
        return lambda _: lambda: http.ThrottledError(status)
    wait = (lambda left: max(0.001, left)) if kind == "right" else lambda _: fixed
    return lambda left: lambda: http.ThrottledError(status, retry_after=wait(left))


def _failure(rng: random.Random) -> Trouble:
    """How the service fails."""
    kind = rng.choice(["connection", "connection", "timeout", "status", "status", "hangs"])
    status = rng.choice([500, 502, 503, 504])
    made: dict[str, Trouble] = {
        "connection": lambda: ConnectionError("reset"),
        "timeout": TimeoutError,
        "status": lambda: http.error_for(status),
        "hangs": lambda: None,
    }
    return made[kind]


def _at_random(rng: random.Random, per_second: float, length: float) -> Behaviour:
    share = rng.choice([0.01, 0.1, 0.33, 0.6])
    refuse, fail = _refusal(rng), _failure(rng)
    trouble = refuse(1.0) if rng.random() < 0.5 else fail
    return lambda call: trouble if call.chance.random() < share else None


def _strict(rng: random.Random, per_second: float, length: float) -> Behaviour:
    """Takes so many calls in a time."""
    rate, refuse = max(1.0, per_second * rng.choice([0.02, 0.1, 0.3, 0.7, 1.0])), _refusal(rng)
    seconds = rng.choice([1.0, 10.0, 60.0])
    limit = bucket(rate, rng.choice([1, 20])) if rng.random() < 0.4 else window(max(1, round(rate * seconds)), seconds)

    def behaviour(call: Call) -> Trouble | None:
        wait = limit(call.row, call.at)
        return None if wait is None else refuse(wait)

    return behaviour


def _few_at_once(rng: random.Random, per_second: float, length: float) -> Behaviour:
    most, refuse = rng.choice([1, 2, 5, 20]), _refusal(rng)
    return lambda call: refuse(1.0) if call.in_flight > most else None


def _away(rng: random.Random, per_second: float, length: float) -> Behaviour:
    """For a time, once."""
    begins = rng.choice([0.0, rng.uniform(0.0, length)])
    ends = begins + rng.choice([0.5, 5.0, 20.0, 100.0, 1000.0])
    refuse, fail = _refusal(rng), _failure(rng)
    is_refusal = rng.random() < 0.3

    def behaviour(call: Call) -> Trouble | None:
        if not begins <= call.at < ends:
            return None
        return refuse(ends - call.at) if is_refusal else fail

    return behaviour


def _flapping(rng: random.Random, per_second: float, length: float) -> Behaviour:
    """Up and down, in turn."""
    up, down = rng.choice([0.3, 2.0, 15.0]), rng.choice([0.3, 2.0, 15.0])
    refuse, fail = _refusal(rng), _failure(rng)
    is_refusal = rng.random() < 0.3

    def behaviour(call: Call) -> Trouble | None:
        into = call.at % (up + down) - up
        if into < 0:
            return None
        return refuse(down - into) if is_refusal else fail

    return behaviour


def _slow_start(rng: random.Random, per_second: float, length: float) -> Behaviour:
    """More and more calls at once, from one."""
    each, refuse, fail = length * rng.choice([0.01, 0.1]), _refusal(rng), _failure(rng)
    trouble = refuse(1.0) if rng.random() < 0.6 else fail
    return lambda call: trouble if call.in_flight > 1 + call.at / each else None


def _bad_rows(rng: random.Random, per_second: float, length: float) -> Behaviour:
    """The service lives, and some rows fail however often they are called."""
    every, fail = rng.choice([3, 10, 50]), _failure(rng)
    trouble: Trouble = fail if rng.random() < 0.5 else lambda: KeyError("title")
    return lambda call: trouble if call.row % every == 0 else None


def record(job: Unwell, server: Server | None) -> Recording:
    """Run the job on the virtual clock."""
    log: list[str] = []
    counts = dict.fromkeys(["taken", "refused", "failed", "cut"], 0)
    attempts: Counter[tuple[int, int]] = Counter()
    in_flight, end = 0, 0.0

    def trouble_of(call: Call) -> Trouble | None:
        return next((trouble for one in job.behaviours if (trouble := one(call)) is not None), None)

    async def called(task: int, row: int) -> int:
        nonlocal in_flight, end
        began, kind = now(), "cut"
        attempts[task, row] += 1
        call = Call(row, began, in_flight + 1, random.Random(f"{task} {row} {attempts[task, row]}"))
        trouble = trouble_of(call)
        in_flight += trouble is None
        try:
            if trouble is None:
                await asyncio.sleep(job.latency(call.chance))
                kind = "taken"
                return row
            if (error := trouble()) is None:
                await asyncio.sleep(1e6)
            await asyncio.sleep(job.trouble_latency(call.chance))
            kind = "refused" if isinstance(error, http.ThrottledError) else "failed"
            assert error is not None
            raise error
        finally:
            in_flight, end = in_flight - (trouble is None), now()
            counts[kind] += 1
            log.append(f"{task} {row} {began:.6f} {kind} {end:.6f}")

    def function(task: int) -> Callable[[int], Any]:
        async def ask(row: int) -> int:
            return await called(task, row)

        return ask

    tasks = len(job.begins)
    ended = run_tasks(
        server if job.is_shared else None,
        [function(task) for task in range(tasks)],
        range(job.rows),
        begins=job.begins,
        **job.options,
    )
    log += [str([*map(_shown, one)]) if isinstance(one, list) else type(one).__name__ for one in ended]
    emitted = sum(_is_result(one) for results in ended if isinstance(results, list) for one in results)
    log.sort()  # calls that are cancelled together end in no order
    digest = hashlib.blake2b("\n".join(log).encode(), digest_size=4).hexdigest()
    given_up, failed = tasks * job.rows - emitted, counts["failed"] + counts["cut"]
    return Recording(digest, sum(counts.values()), counts["refused"], failed, given_up, end)


def _shown(emitted: Any) -> Any:
    """A result, or what its row was given up for, without the seconds."""
    return (
        emitted if _is_result(emitted) or emitted is None else (emitted["error"]["type"], emitted["error"]["attempts"])
    )


def _is_result(emitted: Any) -> bool:
    return emitted is not None and not (isinstance(emitted, dict) and emitted["error"] is not None)


def record_alone(count: int) -> Iterator[str]:
    """A line for each service that refuses calls, and for so many random ones, without a coordinator."""
    for name, job in SERVICES.items():
        yield f"{name.replace(' ', '_')} {record(refusing(job), None)}"
    for seed in range(count):
        yield f"alone_{seed} {record(unwell(seed, is_shared=False), None)}"


def record_shared(count: int, server: Server) -> Iterator[str]:
    """The same for random services that are called by several tasks of a job."""
    for seed in range(count):
        yield f"shared_{seed} {record(unwell(seed, is_shared=True), server)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Record who calls services that are not well, and when.")
    parser.add_argument("--alone", type=int, default=ALONE, help="random services of tasks without a coordinator")
    parser.add_argument("--shared", type=int, default=SHARED, help="the same of tasks with one")
    arguments, write = parser.parse_args(), print
    for line in record_alone(arguments.alone):
        write(line)
    with contextlib.closing(start_server()) as server:
        for line in record_shared(arguments.shared, server):
            write(line)


if __name__ == "__main__":
    main()
