"""When a result counts as paid for, and what becomes of rows whose store, or whose call, fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
import tenacity

from asyncudf import AsyncUDFError, ResultStore, RetryStrategy
from asyncudf.http import PermanentError
from asyncudf.testing import ManualFunction, MemoryStore, OperatorHarness, run_rows
from tests.kit.stores import Counting, SlowStore
from tests.kit.thorough import times

CITIES = ["oslo", "bergen", "oslo", "tromso", "bergen", "oslo"]
UPPER = [city.upper() for city in CITIES]


class TestWrittenBeforeEmitted:
    def test_a_row_is_done_when_its_result_is_in_the_store(self) -> None:
        function, store = ManualFunction(), SlowStore(put=0.5)
        with OperatorHarness(function, store=store) as harness:
            harness.put("a")
            harness.complete("a", "A")
            harness.advance(0.4)
            assert (harness.output, len(store.entries)) == ([], 0)
            harness.advance(0.2)
            assert (harness.output, len(store.entries)) == (["A"], 1)

    def test_results_are_written_a_hundred_together_or_after_a_moment(self) -> None:
        async def number(x: int) -> int:
            await asyncio.sleep(x * 0.001)
            return x

        store = SlowStore()
        assert run_rows(number, range(250), store=store, capacity=250) == [*range(250)]
        sizes = store.sizes("put")
        assert sum(sizes) == 250
        assert max(sizes) <= 100
        assert len(sizes) < 12  # 250 ms of calls, in parts of 50 ms

    def test_a_failed_row_loses_no_result_that_was_paid_for(self) -> None:
        async def weather(city: str) -> str:
            if city == "bad":
                raise ValueError(city)
            return city.upper()

        store = SlowStore(put=0.3)
        with pytest.raises(AsyncUDFError, match="bad"):
            run_rows(weather, ["oslo", "bergen", "bad"], store=store)
        assert len(store.entries) == 2


class TestBrokenStores:
    @pytest.mark.parametrize("what", ["open", "get", "put", "close"])
    def test_calls_go_on_without_it_or_the_task_fails(self, what: str, caplog: pytest.LogCaptureFixture) -> None:
        store = SlowStore()
        store.broken = {what}
        rows = [*CITIES, "x", "y"]
        assert run_rows(Counting().function, rows, store=store, capacity=1, version="1") == [*UPPER, "X", "Y"]
        [record] = caplog.records
        assert "the store of weather cannot be used: ConnectionError" in record.getMessage()
        if what != "close":
            with pytest.raises(
                AsyncUDFError, match=f"the store of weather cannot be used: .*{what}: the store is gone"
            ):
                run_rows(Counting().function, CITIES, store=store, on_store_error="fail")

    @pytest.mark.parametrize("what", ["get", "put"])
    def test_a_slow_store_is_bounded(self, what: str, caplog: pytest.LogCaptureFixture) -> None:
        store = SlowStore(**{what: 100.0})
        assert run_rows(Counting().function, CITIES, store=store, store_timeout=2) == UPPER
        assert "not done within 2 s" in caplog.text
        with pytest.raises(AsyncUDFError, match="not done within 2 s"):
            run_rows(Counting().function, CITIES, store=store, store_timeout=2, on_store_error="fail")

    def test_it_is_asked_again_when_it_is_back(self) -> None:
        function, store = ManualFunction(), SlowStore()
        store.broken = {"get"}
        with OperatorHarness(function, store=store) as harness:
            harness.put("a")
            harness.complete("a", "A")
            store.broken = set()
            harness.put("b")
            harness.complete("b", "B")
            assert (harness.output, len(store.entries)) == (["A", "B"], 0)
            harness.advance(6)
            harness.put("c")
            harness.complete("c", "C")
            harness.advance(1)
            assert (harness.output, len(store.entries)) == (["A", "B", "C"], 1)

    def test_damaged_results_are_called_for_again(self, caplog: pytest.LogCaptureFixture) -> None:
        weather, store = Counting(), SlowStore()
        run_rows(weather.function, ["oslo", "bergen"], store=store)
        store.entries = {key: value[:-1] for key, value in store.entries.items()}
        assert run_rows(weather.function, ["oslo", "bergen"], store=store) == ["OSLO", "BERGEN"]
        assert weather.calls == {"oslo": 2, "bergen": 2}
        assert "2 results in the store of weather are damaged or not its own" in caplog.text


class TestErrors:
    def test_unless_they_would_come_again(self) -> None:
        calls = []

        async def weather(city: str) -> str:
            calls.append(city)
            raise (ConnectionError if city == "down" else LookupError)(city)

        store = MemoryStore(error_ttl=60)
        first = run_rows(weather, ["oslo", "down"], store=store, on_error="capture")
        second = run_rows(weather, ["oslo", "down"], store=store, on_error="capture")
        assert calls == ["oslo", "down", "down"]
        assert [(row["error"]["type"], row["error"]["message"]) for row in first + second] == [
            ("LookupError", "oslo"),
            ("ConnectionError", "down"),
        ] * 2
        assert second[0]["error"]["attempts"] == 0
        store.advance(60)
        run_rows(weather, ["oslo"], store=store, on_error="null")
        assert len(calls) == 4

    def test_equal_rows_that_fail_for_good_are_called_once(self) -> None:
        """All 20 wait for one call; with `error_ttl` they have its error as they would have found it in the store."""
        calls = []

        async def weather(city: str) -> str:
            calls.append(city)
            await asyncio.sleep(1)
            raise (ConnectionError if city == "down" else LookupError)(city)

        rows = ["atlantis"] * 20 + ["down"] * 2
        errors = [
            row["error"]
            for row in run_rows(weather, rows, store=MemoryStore(error_ttl=60), on_error="capture", timeout=5)
        ]
        assert [error["type"] for error in errors] == ["LookupError"] * 20 + ["ConnectionError"] * 2
        assert [error["attempts"] for error in errors] == [1] + [0] * 19 + [1, 1]
        assert calls == ["atlantis", "down", "down"]  # a broken connection is no reason to give up

    def test_a_job_with_redact_sees_no_input_in_an_error_that_one_without_has_kept(self) -> None:
        async def weather(city: str) -> int:
            raise PermanentError(404, "Not Found", f"no {city}")

        def message(**options: Any) -> str:
            (row,) = run_rows(weather, ["oslo"], store=store, on_error="capture", **options)
            return row["error"]["message"]  # type: ignore[no-any-return]

        store = MemoryStore(error_ttl=60)
        assert [message(), message(), message(redact=True)] == ["404 Not Found: no oslo"] * 2 + ["404 Not Found"]

    def test_one_error_policy_reads_what_another_has_kept(self) -> None:
        weather, store = Counting(), MemoryStore()
        assert run_rows(weather.function, ["oslo"], store=store, on_error="capture")[0]["value"] == "OSLO"
        assert run_rows(weather.function, ["oslo"], store=store) == ["OSLO"]
        assert run_rows(weather.function, ["oslo"], store=store, on_error="capture")[0] == {
            "value": "OSLO",
            "error": None,
        }
        assert weather.calls["oslo"] == 1

    @pytest.mark.parametrize("returns", ["string", "struct<name: string>", "array<string>", "decimal(5, 2)"])
    @pytest.mark.parametrize("many", [False, True], ids=["one result", "many"])
    def test_a_captured_result_is_the_same_beside_rows_that_have_none_in_the_store(
        self, returns: str, many: bool
    ) -> None:
        """It was captured twice then: its value was a struct of value and error, or it was called for once more."""
        calls: list[str] = []
        values: dict[str, Any] = {
            "string": "OSLO",
            "struct<name: string>": {"name": "OSLO"},
            "array<string>": ["OSLO", None],
            "decimal(5, 2)": Decimal("1.25"),
        }

        async def one(city: str) -> Any:
            calls.append(city)
            return values[returns]

        async def some(city: str) -> Any:
            calls.append(city)
            yield values[returns]

        store, captured = MemoryStore(), {"value": values[returns], "error": None}
        for cities in (["oslo"], ["oslo", "bergen"], ["tromso", "oslo", "narvik", "bergen"]):
            found = run_rows(some if many else one, cities, store=store, returnType=returns, on_error="capture")
            assert found == [captured] * len(cities)
        assert sorted(calls) == ["bergen", "narvik", "oslo", "tromso"]

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
    def test_what_a_key_function_raises_is_the_error_of_its_row(self, error: BaseException) -> None:
        def key(city: str) -> str:
            if city == "bad":
                raise error
            return city

        weather, store = Counting(), MemoryStore(key=key)
        rows = ["a", "bad", "b"]
        if isinstance(error, SystemExit):
            with pytest.raises(AsyncUDFError, match="SystemExit"):
                run_rows(weather.function, rows, store=store, on_error="null")
        else:
            assert run_rows(weather.function, rows, store=store, on_error="null") == ["A", None, "B"]
            assert weather.calls == {"a": 1, "b": 1}


class TestStoresOfUsers:
    @pytest.mark.parametrize("what", ["open", "get", "put", "close"])
    def test_one_that_cancels_its_asyncio_task_is_one_that_fails(
        self, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A client whose task group has failed does. The rows that had waited for the store waited for ever."""

        class Cancelling(SlowStore):
            async def _ask(self, asked: str, size: int, seconds: float) -> None:
                await super()._ask(asked, size, seconds)
                task = asyncio.current_task()
                if asked == what and task is not None:
                    task.cancel()
                    await asyncio.sleep(0)

        for capacity in (1, 10):
            assert run_rows(Counting().function, CITIES, store=Cancelling(), capacity=capacity) == UPPER
        assert "the store of weather cannot be used: CancelledError" in caplog.text
        if what != "close":
            with pytest.raises(AsyncUDFError, match="cannot be used: CancelledError"):
                run_rows(Counting().function, CITIES, store=Cancelling(), on_store_error="fail")

    def test_no_row_is_lost_whatever_one_does(self) -> None:
        """Slow, failing, cancelling, swallowing cancellations, answering with anything, editing what it is given."""
        for seed in times(100, 2000):
            chance = random.Random(seed)
            store = ErraticStore(chance)
            rows = [f"city {chance.randrange(40)}" for _ in range(chance.choice([5, 60]))]
            capacity, limit = chance.choice([1, 3, 50]), chance.choice([0.2, 1.0])
            out = run_rows(Counting(0.3).function, rows, store=store, capacity=capacity, store_timeout=limit)
            assert out == [row.upper() for row in rows], seed
            assert store.opened == 0, seed


class ErraticStore(ResultStore):
    """A store of which a share of all steps goes wrong in some way."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._share = chance.choice([0.05, 0.3, 1.0])
        self._faults = chance.sample(["slow", "raise", "answer", "swallow", "timeout", "cancel"], chance.randint(1, 6))
        self._entries: dict[bytes, bytes] = {}
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        await self._step(None)

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found = [self._entries.get(key) for key in keys]
        keys.clear()
        return await self._step(found)  # type: ignore[no-any-return]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        self._entries.update(items)
        items.clear()
        await self._step(None)

    async def close(self) -> None:
        self.opened -= 1
        await self._step(None)

    async def _step(self, answer: Any) -> Any:
        match self._chance.choice(self._faults) if self._chance.random() < self._share else None:
            case "slow":
                await asyncio.sleep(self._chance.choice([0.01, 0.5, 30]))
            case "raise":
                errors = [ConnectionError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]
                raise self._chance.choice(errors)
            case "swallow":
                for _ in range(self._chance.choice([1, 10**6])):
                    with contextlib.suppress(BaseException):
                        await asyncio.sleep(1000)
            case "timeout":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await asyncio.sleep(10)
            case "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case "answer" if answer:
                odd = [None, "text", [*answer, b"x"], answer[1:], [*map(str, answer)], iter(answer), {}, answer[::-1]]
                odd += [[1] * len(answer), [b""] * len(answer), [b"x" * 30] * len(answer), b"x" * len(answer)]
                return self._chance.choice(odd)
        return answer


class TestOpenAndClose:
    @pytest.mark.parametrize("is_hanging", [False, True])
    def test_a_store_that_could_not_be_opened_is_closed(self, is_hanging: bool) -> None:
        """It may have connected before it failed: nothing piles up while it is asked again."""

        class Leaking(SlowStore):
            connections = 0

            async def open(self) -> None:
                Leaking.connections += 1
                await asyncio.sleep(100 if is_hanging else 0)
                raise ConnectionError("not there")

            async def close(self) -> None:
                Leaking.connections -= 1

        with OperatorHarness(Counting().function, store=Leaking()) as harness:
            for city in "abc":
                harness.put(city)
                harness.advance(10)
                assert Leaking.connections == 0
            assert harness.output == ["A", "B", "C"]

    def test_an_outage_leaves_no_trace(self) -> None:
        store = SlowStore()
        with OperatorHarness(Counting(0.1).function, store=store, capacity=10_000) as harness:
            store.broken = {"get"}
            for second in range(60):
                harness.put(f"lost {second}")
                harness.advance(1)
            store.broken = set()
            harness.advance(5)
            before = len(store.sizes("get"))
            harness.put(*(f"row {number}" for number in range(1000)))
            harness.advance(5)
            assert len(harness.output) == 1060
            assert len(store.sizes("get")) - before < 8

    def test_a_wrong_answer_is_not_repeated(self, caplog: pytest.LogCaptureFixture) -> None:
        class Wrong(SlowStore):
            async def get_many(self, keys: list[bytes]) -> Any:
                return {"password": "hunter2"}

        run_rows(Counting().function, ["a"], store=Wrong())
        assert "an object of dict" in caplog.text
        assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "retry",
    [
        RetryStrategy.fixed_delay(2, 0.1),
        RetryStrategy.fixed_delay(2, 0.1, retry_on=lambda error: True),
        tenacity.Retrying(stop=tenacity.stop_after_attempt(2)),
    ],
)
def test_a_strategy_that_tries_again_whatever_comes_names_no_error(retry: Any) -> None:
    """So `error_ttl` keeps those that are left when its attempts are used up."""
    calls = 0

    async def fails(city: str) -> str:
        nonlocal calls
        calls += 1
        raise KeyError(city)

    store = MemoryStore(error_ttl=100)
    for _ in range(2):
        assert run_rows(fails, ["a"], store=store, retry=retry, on_error="null") == [None]
    assert calls == 2


class Other(SlowStore):
    """A store that gives values as another type than it was given."""

    as_type: Any = bytearray

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        found = await super().get_many(keys)
        return [None if value is None else self.as_type(value) for value in found]


@pytest.mark.parametrize("kind", [bytearray, memoryview, type("MyBytes", (bytes,), {})])
def test_a_users_store_may_give_any_bytes(kind: Any) -> None:
    weather, store = Counting(), Other()
    store.as_type = kind
    for _ in range(2):
        assert run_rows(weather.function, CITIES, store=store) == UPPER
    assert set(weather.calls.values()) == {1}


@pytest.mark.parametrize("kind", [lambda value: value.decode("latin-1"), list], ids=["str", "list"])
def test_one_that_gives_something_else_is_told(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It would never hit, without a word."""
    weather, store = Counting(), Other()
    store.as_type = kind
    for _ in range(2):
        assert run_rows(weather.function, CITIES, store=store, version="1") == UPPER
    assert "get_many must give bytes or None for each key, not " in caplog.text
    with pytest.raises(AsyncUDFError, match=r"tell it not to \(decode_responses=False\)"):
        run_rows(weather.function, CITIES, store=store, version="1", on_store_error="fail")


def test_equal_rows_of_a_batch_that_failed_are_called_in_batches_too() -> None:
    sizes = []

    async def fails(numbers: pd.Series) -> pd.Series:
        sizes.append(len(numbers))
        raise ValueError

    options: dict[str, Any] = {"batch_size": 10, "on_error": "null", "store": MemoryStore()}
    assert run_rows(fails, [*range(20)] * 3, returnType="int", **options) == [None] * 60
    assert sizes == [10] * 6  # once for each row: a failure is for its row alone
