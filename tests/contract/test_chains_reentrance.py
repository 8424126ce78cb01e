"""Rows that are completed by code that runs while other rows end: each leaves once, at its place."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncudf import AsyncFunction, AsyncStream, ProcessFunction, RateLimit, ResultFuture, RetryStrategy
from asyncudf.testing import MemoryStore, run_stream

HELD: list[tuple[ResultFuture, int]] = []  # rows that wait for other code, and their answers; of all operators
TIMEOUT = 20.0
LATE = -1


def complete_others(most: int = 2) -> None:
    """What code of a user's may do wherever it runs."""
    for _ in range(most):
        if HELD:
            future, answer = HELD.pop(len(HELD) // 2)
            future.complete([Answer(answer)])


class Answer:
    """A result whose check completes other rows."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        complete_others(1)
        return self.value


@dataclasses.dataclass
class Plan:
    """An async operator; each of its calls plays one of the behaviours."""

    mode: str
    capacity: int
    spare: int
    behaviours: list[str]
    retry: bool
    limit: bool
    store: bool
    number: int = 0

    def behaviour(self, n: int) -> str:
        return self.behaviours[n % len(self.behaviours)]

    def answer(self, n: int) -> int:
        return 100 * n + self.number

    def add(self, stream: AsyncStream, number: int) -> AsyncStream:
        self.number = number
        retry = RetryStrategy.fixed_delay(2, 1.5, retry_on=asks_again, retry_if_result=is_unsatisfactory)
        return getattr(stream, f"{self.mode}_wait")(  # type: ignore[no-any-return]
            Calls(self),
            "n",
            returnType="long",
            as_=f"wait{number}",
            capacity=self.capacity,
            queue_size=self.capacity + self.spare,
            timeout=TIMEOUT,
            retry=retry if self.retry else None,
            rate_limit=RateLimit(1000, cost=costs) if self.limit else None,
            store=MemoryStore() if self.store else None,
            version="1",
            on_null_input="null",
        )


def asks_again(error: BaseException) -> bool:
    complete_others()
    return True


def is_unsatisfactory(results: Any) -> bool:
    complete_others()
    return False


def costs(value: Any) -> int:
    complete_others(1)
    return 1


class Calls(AsyncFunction):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.failed: set[int] = set()

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        n = value["n"]
        match self.plan.behaviour(n).split():
            case ["hold"]:
                HELD.append((result_future, self.plan.answer(n)))
            case ["hold", seconds]:  # the coroutine runs on
                HELD.append((result_future, self.plan.answer(n)))
                await asyncio.sleep(float(seconds))
            case ["wait", seconds]:
                await asyncio.sleep(float(seconds))
                result_future.complete([self.plan.answer(n)])
                await asyncio.sleep(float(seconds))
            case ["once"] if self.plan.retry and n not in self.failed:
                self.failed.add(n)
                raise ConnectionError
            case _:
                result_future.complete([self.plan.answer(n)])

    def timeout(self, value: Any, result_future: ResultFuture) -> None:
        complete_others()
        result_future.complete([LATE])


class Looks(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        complete_others(1)
        collector.collect(value)
        complete_others(1)


BEHAVIOUR = st.sampled_from(["at once", "wait 1", "wait 3", "wait 0", "hold", "hold 2", "hold 0", "once"])
PLAN = st.builds(
    Plan,
    mode=st.sampled_from(["ordered", "unordered"]),
    capacity=st.integers(1, 4),
    spare=st.integers(0, 4),
    behaviours=st.lists(BEHAVIOUR, min_size=1, max_size=5),
    retry=st.booleans(),
    limit=st.booleans(),
    store=st.booleans(),
)


def keeps(row: Any) -> bool:
    complete_others(1)
    return True


def same(row: Any) -> Any:
    complete_others()
    return dict(row)


BETWEEN = {
    "filter": lambda stream: stream.filter(keeps),
    "map": lambda stream: stream.map(same),
    "process": lambda stream: stream.process(Looks()),
    "nothing": lambda stream: stream,
}


@given(
    plans=st.lists(st.tuples(PLAN, st.sampled_from([*BETWEEN])), min_size=1, max_size=3),
    nulls=st.sets(st.integers(0, 19)),
    count=st.integers(1, 20),
    batch_size=st.integers(1, 9),
)
def test_rows_that_complete_one_another_leave_once_at_their_places(
    plans: list[tuple[Plan, str]], nulls: set[int], count: int, batch_size: int
) -> None:
    HELD.clear()

    def build(stream: AsyncStream) -> AsyncStream:
        for number, (plan, between) in enumerate(plans):
            stream = BETWEEN[between](plan.add(stream, number))
        return stream.filter(keeps)

    rows = [{"id": n, "n": None if n in nulls else n} for n in range(count)]
    got = run_stream(build, rows, "id long, n long", batch_size=batch_size)
    assert sorted(row["id"] for row in got) == [*range(count)]
    for row in got:
        for plan, _ in plans:
            found = row[f"wait{plan.number}"]
            may_be_late = any("hold" in one for one in plan.behaviours)  # a row that is held keeps its slot
            assert found == (None if row["n"] is None else plan.answer(row["n"])) or (may_be_late and found == LATE)
    if all(plan.mode == "ordered" for plan, _ in plans):
        assert [row["id"] for row in got] == [*range(count)]
