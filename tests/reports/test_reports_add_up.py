"""What all reports say of a sink, against a service that counts for itself: random programs on the virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import DEAD_LETTERS, AsyncUDFError, Budget, CircuitBreaker, RateLimit, RetryStrategy, RuntimeContext, http
from asyncudf._observe.function_metrics import SinkRows
from asyncudf._observe.reports.manifest import manifest
from asyncudf._observe.reports.progress import ProgressTracker, Snapshot, line
from asyncudf._observe.reports.summary import summary
from asyncudf.testing import MemoryStore
from tests.kit.engines import Engine
from tests.kit.runs import figures_of

SECONDS = {"at once": 0.0, "slow": 3.0, "hang": 1000.0}  # other calls take 0.5
PRICE = 0.5  # of a call
ENDS = {
    "again": ConnectionError,
    "for good": ValueError,
    "poison": OSError,
    "refuse": lambda: http.ThrottledError(429, retry_after=1.0),
    "hang": TimeoutError,
}


class Service:
    """Ends each row as planned: each time that it is sent, also by another task, in the next way.

    Attributes:
        calls: it got.
        sent: how often it got each row.
    """

    def __init__(self, plans: Sequence[Sequence[str]], sent_by_all: Counter[int]) -> None:
        self.plans, self.sent_by_all = plans, sent_by_all
        self.calls = 0
        self.sent: Counter[int] = Counter()
        self.written: set[int] = set()

    async def one(self, number: int, key: int | None, context: RuntimeContext) -> int:
        """A call of a row."""
        (answer,) = await self._answers([number], context)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def many(self, number: pa.Array, key: pa.Array, context: RuntimeContext) -> list[Any]:
        """A call of many rows, which fails as a whole if one is poison."""
        return await self._answers(number.to_pylist(), context)

    async def _answers(self, rows: list[int], context: RuntimeContext) -> list[Any]:
        self.calls += 1
        context.spend(PRICE, "USD")
        self.sent.update(rows)
        self.sent_by_all.update(rows)
        ends = [self.plans[row][min(self.sent_by_all[row], len(self.plans[row])) - 1] for row in rows]
        await asyncio.sleep(max(SECONDS.get(end, 0.5) for end in ends))
        if "poison" in ends:
            raise OSError("poison")
        self.written.update(row for row, end in zip(rows, ends, strict=True) if end not in ENDS)
        return [ENDS[end]() if end in ENDS else row for row, end in zip(rows, ends, strict=True)]


class Task:
    """A task of a sink, with what the service got of it."""

    def __init__(self, service: Service, rows: list[Any], options: dict[str, Any], loop: Any = None) -> None:
        self.service, self.rows = service, rows
        function = service.many if "batch_size" in options else service.one
        self.engine = Engine(function, loop=loop, returnType="long", version="1", on_error="dead_letter", **options)
        self.engine.feed(rows)
        self.engine.end()
        self.error: BaseException | None = None

    @property
    def letters(self) -> list[Any]:
        return self.engine.side_outputs.get(DEAD_LETTERS, [])

    @property
    def is_whole(self) -> bool:
        return self.error is None and len(self.letters) + len(self.engine.output) == len(self.rows)

    def check(self, null: set[int]) -> None:
        """The figures of the task are what the service has counted."""
        (told,) = figures_of([self.engine.counted], {}, "sink")
        sent = self.service.sent
        assert told["attempts"] == self.service.calls
        assert told["retried_rows"] == sum(times > 1 for times in sent.values())
        assert told["spent"].get("USD", 0.0) == pytest.approx(PRICE * self.service.calls)
        assert max(told["errors"].values(), default=0) <= told["attempts"]
        assert told["throttled"] <= told["attempts"]
        counts = SinkRows.of(told)
        assert sum(counts) == told["rows"]
        if not self.is_whole:
            return
        assert told["in_flight"]["mean"] <= told["in_flight"]["peak"] + 1e-6
        failed = {letter["input"][0] for letter in self.letters}
        good = {number for number, _ in self.rows} - failed - null
        assert told["unpaid"] == sum(letter["error"]["type"] == "BudgetSpentError" for letter in self.letters)
        assert counts == SinkRows(
            written=len(good & set(sent)), failed=len(self.letters), reused=len(good - set(sent)), skipped=len(null)
        )
        assert good & set(sent) <= self.service.written


def check_views(tasks: list[Task], statuses: list[str]) -> None:
    """Manifest, progress and summary say the same of a run of these tasks."""
    (told,) = figures_of([task.engine.counted for task in tasks], {}, "sink", statuses=statuses)
    run = {"functions": [told], "is_over": True, "began": 0.0, "seconds": 1.0}
    calls = sum(task.service.calls for task in tasks)
    found = manifest(run, "")
    assert (found["attempts"], found["spent"].get("USD", 0.0)) == (calls, pytest.approx(PRICE * calls))
    counts = SinkRows.of(told)
    assert (found["rows"], found["failures"]) == (sum(counts), counts.failed)
    (progress,) = ProgressTracker().track(Snapshot([told], 1, 1, 10.0), is_over=True)
    assert (progress.rows, progress.sink) == (sum(counts), counts)
    assert f", {counts.words}," in line(progress)
    if told["tasks"]["succeeded"]:
        assert f" {sum(counts):,} in, {counts.words}" in " ".join(summary(run).split())


PLANS = st.sampled_from(
    [["write", "at once"], ["write", "at once", "again"], ["write", "again", "for good", "slow"], ["at once", "refuse"],
     ["write", "again", "for good", "poison", "refuse", "hang"], ["write", "poison"]]
).flatmap(lambda ends: st.lists(st.tuples(
    st.integers(0, 12) | st.integers(0, 12) | st.none(), st.lists(st.sampled_from(ends), min_size=1, max_size=3)
), min_size=1, max_size=25))  # fmt: skip
RETRIES = st.builds(
    lambda attempts, delay, kinds: RetryStrategy.fixed_delay(attempts, delay, retry_on=kinds),
    st.integers(2, 4),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([ConnectionError, (ConnectionError, OSError)]),
)


@st.composite
def options(draw: Any) -> dict[str, Any]:
    def some(chosen: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | chosen)

    bulk = some(st.integers(1, 8))
    chosen = {
        "output_mode": draw(st.sampled_from(["ordered", "unordered"])),
        "capacity": draw(st.integers(1, 6)),
        "batch_size": bulk,
        "split_failed": bulk and some(st.just(True)),
        "retry": some(RETRIES),
        "timeout": draw(st.sampled_from([2.3, 5.3, 20.3, 300.0])),
        "attempt_timeout": some(st.just(2.1)),
        "on_null_input": some(st.just("null")),
        "store": some(
            st.sampled_from([None, 1000]).map(lambda ttl: MemoryStore(error_ttl=ttl, key=lambda n, key: key))
        ),
        "budget": some(st.integers(1, 30).map(lambda calls: Budget(PRICE * calls, "USD", reserve=PRICE))),
        "rate_limit": some(st.just(RateLimit(5, 1, scope="task"))),
        "breaker": some(st.just(CircuitBreaker())),
        "max_failures": some(st.integers(1, 10)),
    }
    if chosen["budget"] is not None:
        chosen["on_spent"] = draw(st.sampled_from(["dead_letter", "raise"]))
    return {name: value for name, value in chosen.items() if value is not None}


@given(
    planned=PLANS,
    options=options(),
    shape=st.sampled_from(["one", "parts", "copies"]),
    cut=st.none() | st.sampled_from([0.7, 2.2, 4.1]),
)
def test_all_reports_say_what_the_service_has_counted(
    planned: list[Any], options: dict[str, Any], shape: str, cut: float | None
) -> None:
    """With a `cut` a first run is killed then, and the tasks are run again, with the same store."""
    rows = [(number, key) for number, (key, _) in enumerate(planned)]
    null = {number for number, key in rows if key is None} if "on_null_input" in options else set()
    plans, sent = [ends for _, ends in planned], Counter[int]()
    parts = {"one": [rows], "parts": [rows[::2], rows[1::2]], "copies": [rows, rows]}[shape]
    for until in [None] if cut is None else [cut, None]:
        first = Task(Service(plans, sent), parts[0], options)
        tasks = [first, *(Task(Service(plans, sent), part, options, first.engine.loop) for part in parts[1:])]
        if until is not None and len(tasks) > 1:
            tasks = tasks[:1]
        try:
            first.engine.run(*(task.engine for task in tasks[1:]), until=until)
        except AsyncUDFError as error:
            for task in tasks:
                task.error = error
        for task in tasks:
            task.check(null & {number for number, _ in task.rows})
        ended = ["succeeded" if task.is_whole else "failed" for task in tasks]
        if shape == "copies" and "failed" not in ended:
            ended[1:] = ["lost"] * (len(tasks) - 1)
        check_views(tasks, ended)


ONCE_MORE = RetryStrategy.fixed_delay(2, 2.0)


def run_of(plans: list[list[str]], *, every: float = 0.0, cut: float | None = None, **options: Any) -> dict[str, Any]:
    """The figures of calls of many rows, of which one comes `every` so many seconds."""
    service = Service(plans, Counter())
    engine = Engine(service.many, returnType="long", version="1", on_error="dead_letter", **options)
    for number in range(len(plans)):
        engine.loop.call_at(every * number, engine.feed, [(number, number)])
    engine.loop.call_at(every * len(plans), engine.end)
    engine.run(until=cut)
    (told,) = figures_of([engine.counted], {}, "sink")
    assert told["attempts"] == service.calls
    return told


def test_an_attempt_that_is_cut_belongs_to_a_call_that_has_begun() -> None:
    """One that is made again as if it were of rows of several calls was in no figure."""
    told = run_of([["again", "slow"]], cut=3.2, batch_size=1, retry=ONCE_MORE)
    assert (told["calls"], told["attempts"], told["abandoned"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({}, 1.0), ({"budget": Budget(PRICE, "USD", reserve=PRICE), "on_spent": "dead_letter"}, 0.5)],
    ids=["made again", "not made again"],
)
def test_calls_are_in_flight_while_the_service_has_them(options: dict[str, Any], seconds: float) -> None:
    told = run_of([["again", "write"]], batch_size=1, retry=ONCE_MORE, **options)
    assert told["in_flight"]["mean"] * told["seconds"] == pytest.approx(seconds)


def test_an_attempt_for_many_rows_is_one_error() -> None:
    """Of rows that follow the call of an equal row; of rows of two calls, of which one is late before the other."""
    told = run_of([["hang"]] * 3, batch_size=1, timeout=10.3, store=MemoryStore(key=lambda number, key: 0))
    assert (told["failures"], told["errors"]) == (3, {"AsyncTimeoutError": 1})
    plans = [["again", "hang"], ["again", "hang"], ["slow"]]
    told = run_of(plans, every=1.0, batch_size=4, batch_linger=0.01, timeout=10.3, capacity=1, retry=ONCE_MORE)
    assert (told["failures"], told["errors"]) == (2, {"ConnectionError": 2, "AsyncTimeoutError": 1})
    told = run_of([["refuse", "write"]] * 4, batch_size=4)
    assert (told["throttled"], told["attempts"], told["retried_rows"]) == (1, 2, 4)
