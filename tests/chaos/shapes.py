"""What a random job is: its query, its options, how the service answers, and what is killed. A seed gives all of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

__all__ = (
    "ACCIDENTS",
    "BESIDE_ROWS",
    "DEAREST",
    "ENGINES",
    "ON_SAIL",
    "Accident",
    "Service",
    "Shape",
    "million",
    "price_of",
    "result_of",
)

ENGINES = ("spark", "sail")

# What may happen to a job, and what the report calls it.
ACCIDENTS = {
    "worker": "a Python worker is killed",
    "workers": "all Python workers are killed at once",
    "executor": "an executor is killed",
    "driver": "the driver is killed with its JVM, and the job runs again",
    "driver alone": "the driver's Python process is killed, and the job runs again",
    "server": "the Spark Connect server is killed, and the job runs again",
    "coordinator": "the coordinator is killed",
    "redis": "the Redis of the store is killed",
    "redis stops": "the Redis of the store does not answer for 2 s",
    "disk": "the disk of the store becomes full",
    "outage": "the service fails each call for 2 s",
    "connections": "the service drops all connections",
    "cancel": "the query is cancelled",
    "ends": "another query runs on the server",
    "fails": "a query beside it fails",
    "is cancelled": "a query beside it is cancelled",
    "stops": "a query beside it stops at its LIMIT",
}
ON_SAIL = {  # there
    "driver": "the client is killed with its server, and the job runs again",
    "driver alone": "the client is killed, the server goes on, and the job runs again",
    "server": "the server is killed, and the job runs again",
}
BESIDE_ROWS = 100  # of one that ends
BESIDE = ("ends", "fails", "is cancelled", "stops")  # what becomes of a query beside the job's own


LIMITS = {"rate_limit", "job_capacity", "max_calls", "budget"}  # options that hold over all tasks
NULL_ROWS, NULL_ROW = 7, 3  # one row of so many, and the first of them


@dataclass(frozen=True)
class Accident:
    """One of `ACCIDENTS`, which happens after more than `calls` calls of the job, or rows in bulk."""

    kind: str
    calls: int


@dataclass(frozen=True)
class Service:
    """How the service answers: shares of calls.

    Of any `mercy` calls for one argument that follow each other at least one succeeds, whatever the shares say; but an
    argument among the `hopeless` gets a 404 each time.
    """

    seed: int
    seconds: float
    error: float = 0.0
    hang: float = 0.0
    refuse: float = 0.0
    drop: float = 0.0
    hopeless: float = 0.0
    mercy: int = 1

    def is_hopeless(self, n: int) -> bool:
        return self.hopeless > 0 and _chance(self.seed, n, -1) < self.hopeless

    def answer(self, n: int, number: int) -> str:
        """What becomes of the call with this number, from 0, for an argument; refusals do not count."""
        if self.is_hopeless(n):
            return "hopeless"
        if number % self.mercy == self.mercy - 1:
            return "ok"
        chance = _chance(self.seed, n, number)
        for name in ("error", "hang", "drop"):
            chance -= getattr(self, name)
            if chance < 0:
                return name
        return "ok"

    def latency(self, n: int, number: int) -> float:
        return self.seconds * (0.5 + 2 * _chance(self.seed + 1, n, number) ** 3)

    def is_refused(self, n: int, arrival: int) -> bool:
        """A row that is refused is so at its first two arrivals at most."""
        return arrival < 2 and self.refuse > 0 and _chance(self.seed + 2, n, arrival) < self.refuse


def _chance(seed: int, n: int, number: int) -> float:
    """A fixed number between 0 and 1."""
    mixed = (seed * 0x9E3779B97F4A7C15 + n * 0xBF58476D1CE4E5B9 + (number + 2) * 0x94D049BB133111EB) % 2**64
    mixed = ((mixed ^ (mixed >> 31)) * 0xD6E8FEB86659FD93) % 2**64
    mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) % 2**64
    return (mixed ^ (mixed >> 32)) / 2**64


def result_of(n: int) -> int:
    """The right result for an argument."""
    return 10 * n + 7


DEAREST = 3  # credits, the most that a call for an argument costs


def price_of(n: int) -> int:
    """What the service bills for an answer, in credits."""
    return 1 + n % DEAREST


@dataclass(frozen=True)
class Shape:
    """A job. Row i of `rows` asks for the argument i % distinct; with `on_null_input` every seventh asks for NULL.

    Attributes:
        entry: the entry point.
        form: of the function: "row", "batch" (vectorized), "bulk" (the same, with an answer for each row), "many" (two
            results per row), "class" (an `AsyncFunction`), "thread" (a plain `def`), "postgres" (vectorized, on
            PostgreSQL).
        options: those of the function that are plain values.
        store: "executor", "disk", "redis" or none.
        connect: over a Spark Connect server of the job's own; on Sail it is a process, else in that of the driver.
        limit: the LIMIT behind the function; 0: none.
        runs: how many times the driver runs the query.
        engine: one of `ENGINES`.
        parallelism: of Sail, which leaves rows in their partitions if it is 1; 0: it has one for each core.
        beside: queries that run on the server as each run begins, as `BESIDE` names them.
    """

    seed: int
    rows: int
    distinct: int
    options: dict[str, Any]
    service: Service
    partitions: int = 2
    batch: int = 50
    cluster: bool = False
    connect: bool = False
    entry: str = "operator"
    form: str = "row"
    streaming: bool = False
    store: str = "disk"
    accidents: tuple[Accident, ...] = ()
    limit: int = 0
    runs: int = 1
    minutes: float = 5.0
    engine: str = "spark"
    parallelism: int = 0
    beside: tuple[str, ...] = ()

    @classmethod
    def random(cls, seed: int, engine: str = "spark") -> Shape:
        chance = random.Random(seed)
        shape = _random(chance, seed)
        return _on_sail(shape, chance) if engine == "sail" else shape

    def __str__(self) -> str:
        where = f"{'2 executors' if self.cluster else 'local'}{' over Connect' * self.connect}"
        if self.is_on_sail:
            where = f"Sail{' as a server' * self.connect}{' with parallelism 1' * (self.parallelism == 1)}"
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        told = [f"{self.entry}{' (streaming)' if self.streaming else ''}, {self.form}, {where}, {self.rows:,} rows"]
        told += [f"{self.distinct:,} distinct"] if self.distinct < self.rows else []
        told += [options] + [f"store {self.store}"] * bool(self.store) + [f"limit {self.limit}"] * bool(self.limit)
        told += [f"{one.kind} at call {one.calls}" for one in self.accidents]
        told += [f"a query beside it {kind}" for kind in self.beside]
        return "; ".join(told)

    @property
    def is_on_sail(self) -> bool:
        return self.engine == "sail"

    @property
    def is_copied(self) -> bool:
        """Whether the engine may evaluate the function twice for a row, and deal its rows to other tasks."""
        return self.is_on_sail and self.entry in ("column", "sql")

    @property
    def server_outlives(self) -> bool:
        """Whether the server goes on with the query of a client that is killed alone."""
        return self.is_on_sail and self.connect

    @property
    def kinds(self) -> set[str]:
        return {one.kind for one in self.accidents}

    @property
    def copies(self) -> int:
        """Results of a row."""
        return 2 if self.form == "many" else 1

    @property
    def is_limited(self) -> bool:
        """Whether its tasks count together."""
        return bool(self.options.keys() & LIMITS)

    @property
    def rate(self) -> tuple[float, float | None]:
        """The most calls in a second, and the burst; of a limit that the service tells, what it comes to."""
        most, burst = self.options["rate_limit"]
        return min(most, max(self.options.get("learned", [most]))), burst

    @property
    def is_short(self) -> bool:
        """Whether the budget, or the calls that there may be, may not suffice for all rows."""
        amount, _ = self.options.get("budget", (math.inf, "raise"))
        return amount < 3 * DEAREST * self.rows or self.options.get("max_calls", math.inf) < 2 * self.rows + 1000

    @property
    def is_ordered(self) -> bool:
        return bool(self.options["output_mode"] == "ordered")

    @property
    def restarts(self) -> bool:
        """Whether another driver runs the job again."""
        return bool(self.kinds & {"driver", "driver alone", "server"})

    @cached_property
    def hopeless(self) -> set[int]:
        """The arguments that fail for good."""
        return {n for n in self.asked if self.service.is_hopeless(n)}

    @cached_property
    def null_rows(self) -> set[int]:
        """The rows that have no argument, and so make no call."""
        return set(range(NULL_ROW, self.rows, NULL_ROWS)) if "on_null_input" in self.options else set()

    @cached_property
    def asked(self) -> Counter[int]:
        """The arguments that are asked for, with the number of their rows."""
        return Counter(row % self.distinct for row in set(range(self.rows)) - self.null_rows)


def _random(chance: random.Random, seed: int) -> Shape:
    """A shape in which all that is combined may be combined."""
    entry = chance.choice(["column", "sql", "operator", "operator", "table function", "chain", "chain", "sink", "sink"])
    in_order = entry in ("column", "sql")
    forms = ["row", "row", "row", "batch", "bulk", "thread", "postgres"] + ([] if in_order else ["many", "class"])
    form = chance.choice(["row", "bulk", "bulk"] if entry == "sink" else forms)
    streaming = entry != "table function" and chance.random() < 0.15
    store = "" if form == "postgres" else chance.choice(["", "", "", "executor", "disk", "redis"])
    rows = chance.choice([1, 40, 200, 200, 500, 500, 1000, 1000])
    distinct = max(1, rows // chance.choice([1, 2, 10]) if store else rows)
    cluster = chance.random() < 0.3
    on_error = chance.choice(["raise", "null", "capture"] + (["dead_letter"] * 3 if entry == "chain" else []))
    on_error = "dead_letter" if entry == "sink" else on_error
    options: dict[str, Any] = {
        "output_mode": "ordered" if in_order or entry == "sink" else chance.choice(["ordered", "unordered"]),
        "capacity": chance.choice([1 if rows < 100 else 10, 5, 20, 50, "auto"]),
        "on_error": on_error,
        "timeout": 90.0,
    }
    if entry == "table function" and form != "many":  # an ordered one would be a SQL function
        options["output_mode"] = "unordered"
    if form in ("batch", "bulk", "postgres"):
        options |= {"batch_size": chance.choice([1, 7, 50]), "batch_linger": chance.choice([None, 0.02])}
    if form == "bulk" and chance.random() < 0.3:
        options["max_batch_weight"] = chance.choice([2, 20])
    mercy = chance.choice([1, 3, 5])
    options["retry"] = mercy
    options["attempt_timeout"] = chance.choice([1.0, 2.0])
    service = Service(
        seed=seed,
        seconds=chance.choice([0.002, 0.02, 0.05]),
        error=chance.choice([0.0, 0.1, 0.3]),
        # A bulk request that has no answer is one of all of its rows, so that a row may have none more often.
        hang=0.0 if form == "bulk" else chance.choice([0.0, 0.0, 0.05]) / (1 if rows < 1000 else 3),
        refuse=chance.choice([0.0, 0.0, 0.05]),
        drop=0.0 if form in ("thread", "bulk", "postgres") else chance.choice([0.0, 0.0, 0.05]),
        hopeless=0.0 if form in ("batch", "postgres") else chance.choice([0.0, 0.02 if on_error != "raise" else 0.005]),
        mercy=mercy,
    )
    if chance.random() < 0.5:
        options |= _limits(chance, rows, form)
    limit = 0
    if not streaming and not in_order and on_error != "dead_letter" and entry != "sink" and chance.random() < 0.1:
        limit = 1 + rows // 10
    accidents = _accidents(
        chance,
        distinct // (1 if form == "bulk" else options.get("batch_size", 1)),
        cluster=cluster,
        store=store,
        options=options,
    )
    if "redis stops" not in {one.kind for one in accidents}:
        options["store_timeout"] = 10.0  # on a busy machine a second passes without anything being wrong
    shape = Shape(
        seed=seed,
        rows=rows,
        distinct=distinct,
        partitions=chance.choice([1, 2, 3, 6]),
        batch=chance.choice([7, 100, 10_000]),
        cluster=cluster,
        entry=entry,
        form=form,
        streaming=streaming,
        options=options,
        store=store,
        service=service,
        accidents=accidents if not limit else (),
        limit=limit,
        runs=2 if store and not streaming and not limit and chance.random() < 0.5 else 1,
    )
    if chance.random() < 0.25:
        options["on_null_input"] = "null"
    if form in ("row", "bulk") and chance.random() < 0.3:
        left_out = "dead_letter" if on_error == "dead_letter" else "null"
        options["budget"] = [chance.choice([1, 4 * DEAREST]) * max(rows, 10), chance.choice([left_out, "raise"])]
    if on_error != "raise" and chance.random() < 0.3:
        options["max_failures"] = chance.choice([0, 3, rows])
    return _over_connect(shape, chance) if not streaming and chance.random() < 0.2 else shape


def _over_connect(shape: Shape, chance: random.Random) -> Shape:
    """The job of a client of a Spark Connect server, which may be killed in the place of its driver.

    A client that dies alone is no accident of it: the server goes on with what nobody waits for. The Redis of the
    store coordinates the tasks, and lives on where there is anything to coordinate.
    """
    accidents = [
        replace(one, kind="server") if one.kind.startswith("driver") and chance.random() < 0.7 else one
        for one in shape.accidents
    ]
    impossible = {"driver alone", "coordinator", *(("redis", "redis stops") if shape.is_limited else ())}
    return replace(shape, connect=True, accidents=tuple(one for one in accidents if one.kind not in impossible))


def _on_sail(shape: Shape, chance: random.Random) -> Shape:
    """The job on Sail, whose tasks are threads of the server: what kills a worker of Spark kills all there is.

    Left out is what docs/platforms/sail.md says Sail refuses: table functions, operators over streams, and what is of
    one query in SQL.
    """
    is_server = chance.random() < 0.7
    fatal = ["driver", "driver alone", "server", "server"] if is_server else ["driver"]
    accidents: list[Accident] = []
    kinds: set[str] = set()
    for one in shape.accidents:
        is_fatal = one.kind in ("worker", "workers", "executor", "driver", "driver alone", "server")
        kind = chance.choice(fatal) if is_fatal else one.kind
        if kind not in kinds:
            accidents.append(replace(one, kind=kind))
            kinds.add(kind)
    if kinds & {*fatal}:
        accidents = [one for one in accidents if one.kind != "cancel"]
    entry = "operator" if shape.entry == "table function" else shape.entry
    options = dict(shape.options)
    if entry == "sql":
        options.pop("max_calls", None)
        if shape.store not in ("disk", "redis"):  # with these a budget has a name
            options.pop("budget", None)
    return replace(
        shape,
        engine="sail",
        cluster=False,
        connect=is_server,
        entry=entry,
        streaming=False,
        options=options,
        accidents=tuple(accidents),
        parallelism=chance.choice([0, 1]),
        beside=tuple(chance.sample(BESIDE, chance.choice([0, 0, 1, 2]))),
    )


def _limits(chance: random.Random, rows: int, form: str) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if chance.random() < 0.5:
        limits["rate_limit"] = [chance.choice([100, 300]), chance.choice([None, 1, 20])]  # permits per second, burst
        if form not in ("thread", "postgres") and chance.random() < 0.4:  # at the start, and what the service tells
            limits["learned"] = [chance.choice([20, 100]), chance.choice([50, 150, 1000])]
    if form != "thread" and chance.random() < 0.5:
        limits["job_capacity"] = chance.choice([1, 4, 15]) if rows < 500 else chance.choice([8, 15])
    if chance.random() < 0.3:
        limits["max_calls"] = chance.choice([rows // 2 + 1, 10 * rows + 1000])
    if chance.random() < 0.3:
        limits["breaker"] = True
    return limits


def _accidents(
    chance: random.Random, calls: int, *, cluster: bool, store: str, options: dict[str, Any]
) -> tuple[Accident, ...]:
    limited = options.keys() & LIMITS
    kinds = ["worker", "workers", "driver", "driver alone", "connections", "cancel"]
    kinds += ["executor"] * 3 * cluster + ["coordinator"] * 3 * bool(limited) + ["disk"] * 3 * (store == "disk")
    kinds += ["redis", "redis", "redis stops"] * (store == "redis") + ["outage"] * ("breaker" in options) * 3
    count = chance.choice([0, 1, 1, 1, 2, 3])
    chosen = dict.fromkeys(chance.choice(kinds) for _ in range(count))  # each at most once
    if "driver" in chosen:
        chosen.pop("driver alone", None)
    if chosen.keys() & {"driver", "driver alone"}:
        chosen.pop("cancel", None)
    return tuple(Accident(kind, int(calls * chance.uniform(0.05, 0.8))) for kind in chosen)


def million(seed: int, rows: int = 1_000_000, *, sink: bool = False) -> Shape:
    """A large job: a tenth of the calls fails, a twentieth hangs, and workers are killed.

    Args:
        sink: write the rows in bulk, with a store, on two executors; one of these, the driver and all workers die too.
    """
    chance = random.Random(seed)
    if sink:
        kills = ["worker"] * 6 + ["workers", "executor", "driver"]
        return Shape(
            seed=seed,
            rows=rows,
            distinct=rows,
            partitions=40,
            batch=10_000,
            cluster=True,
            entry="sink",
            form="bulk",
            options={
                "output_mode": "ordered",
                "capacity": 10,
                "on_error": "dead_letter",
                "timeout": 90.0,
                "attempt_timeout": 10.0,
                "retry": 5,
                "batch_size": 500,
                "store_timeout": 10.0,  # on a busy machine a second passes without anything being wrong
            },
            service=Service(seed=seed, seconds=0.05, error=0.02, refuse=0.01, hopeless=0.001, mercy=5),
            accidents=tuple(Accident(kind, int(rows * chance.uniform(0.05, 0.95))) for kind in kills),
            minutes=40.0,
        )
    return Shape(
        seed=seed,
        rows=rows,
        distinct=rows,
        partitions=40,
        batch=10_000,
        options={
            "output_mode": "unordered",
            "capacity": 400,
            "on_error": "capture",
            "timeout": 90.0,
            "attempt_timeout": 3.0,
            "retry": 5,
        },
        service=Service(seed=seed, seconds=0.01, error=0.1, hang=0.05, hopeless=0.001, mercy=5),
        accidents=tuple(Accident("worker", int(rows * chance.uniform(0.02, 0.95))) for _ in range(10)),
        minutes=30.0,
    )
