"""`by=` of a rate limit: what it may be, and which rows have one key."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncFunction, AsyncStream, AsyncUDFError, OptionError, RateLimit, ResultFuture, async_pandas_udf
from asyncudf._limits.rates.keyed import KeyTimes, OwnKeys
from asyncudf.testing import run_rows, run_stream
from tests.kit.limited import now


async def begins(tenant: Any, x: int = 0) -> float:
    return now()


class AsDict(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        result_future.complete([now()])


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (5, "by must be the name of a parameter of the function, such as 'tenant', or a list of them, not 5"),
        ([], r"by must be the name of .*, not \[\]"),
        ("", "a name in by must be a text of at least one character, not ''"),
        (["tenant", 3], "a name in by must be a text of at least one character, not 3"),
        (["tenant", "tenant"], "by has 'tenant' twice"),
    ],
)
def test_what_cannot_name_parameters_is_refused_at_once(by: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        RateLimit(1, by=by)


def test_without_msgspec_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each executor would fail else, at its first row."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'by needs msgspec: pip install "asyncudf\[store\]"'):
        RateLimit(1, by="tenant")


class TestWhenPlanned:
    """A mistake in `by` is an error where the function is used, and names its parameters."""

    def test_a_name_that_is_no_parameter(self) -> None:
        with pytest.raises(
            OptionError, match=r"by='host' needs a column: the parameters of begins .* are \(tenant, x\)"
        ):
            async_pandas_udf("double", rate_limit=RateLimit(1, by="host"))(begins)

    def test_a_parameter_that_no_column_fills(self) -> None:
        with pytest.raises(OptionError, match=r"by='x' needs a column: .* are \(tenant\)"):
            run_rows(begins, [1], rate_limit=RateLimit(1, by="x"))
        with pytest.raises(OptionError, match=r"by='x' needs a column: .* are \(tenant\)"):
            run_stream(lambda stream: stream.ordered_wait(begins, rate_limit=RateLimit(1, by="x")), [], "tenant int")

    def test_a_column_that_a_function_of_any_columns_does_not_get(self) -> None:
        """Only the columns tell the names of `**columns`; those of a call by position have none."""

        async def of_any(x: int, **columns: Any) -> float:
            return now()

        function = async_pandas_udf("double", rate_limit=RateLimit(1, by="tenant"))(of_any)
        spec, _ = function.spec.with_arguments([], {"tenant": "column", "x": "column"})
        assert spec.parameters == ("x", "tenant")
        with pytest.raises(OptionError, match=r"by='tenant' needs a column: .* are \(x, y\)"):
            function.spec.with_arguments([], {"x": "column", "y": "column"})
        with pytest.raises(OptionError, match=r"by='tenant' needs a column: .* are \(x\)"):
            run_rows(function, [1])

    def test_a_column_that_an_async_function_does_not_get(self) -> None:
        def build(stream: AsyncStream) -> AsyncStream:
            return stream.ordered_wait(AsDict(), "x", returnType="t double", rate_limit=RateLimit(1, by="tenant"))

        with pytest.raises(OptionError, match=r"by='tenant' needs a column: .* are \(x\)"):
            run_stream(build, [], "tenant int, x int")

    def test_one_name_for_a_limit_by_key_and_one_that_is_not(self) -> None:
        """Limits of one name are one limit."""

        def with_limits(first: RateLimit, second: RateLimit) -> None:
            run_stream(
                lambda stream: stream.ordered_wait(begins, "tenant", rate_limit=first)
                .ordered_wait(again, "tenant", rate_limit=second),
                [], "tenant int",
            )  # fmt: skip

        async def again(tenant: int) -> float:
            return now()

        by_key, other = RateLimit(1, name="crm", by="tenant"), RateLimit(2, name="crm")
        with pytest.raises(
            OptionError,
            match=r'RateLimit\(1, name="crm", by="tenant"\) and RateLimit\(2, name="crm"\) have one name, .* only one',
        ):
            with_limits(by_key, other)
        with_limits(by_key, by_key)
        with_limits(other, RateLimit(3, name="crm"))
        with_limits(by_key, RateLimit(1, name="model"))

    def test_a_function_of_many_rows(self) -> None:
        async def plus(x: pd.Series) -> pd.Series:
            return x + 1

        with pytest.raises(OptionError, match=r"by='x' is for functions of one row a call; plus takes many rows"):
            run_rows(plus, [1], rate_limit=RateLimit(1, by="x"))


class TestOfARow:
    def test_what_no_key_can_be_made_of_is_the_rows_error(self) -> None:
        rows = [("a", 0), (object(), 1), ("a", 2)]
        limit = RateLimit(1, by="tenant")
        assert run_rows(begins, rows, on_error="null", rate_limit=limit)[1] is None
        with pytest.raises(AsyncUDFError, match=r'by="tenant" can make no key of a value of type object: let it name'):
            run_rows(begins, rows, rate_limit=limit)

    def test_a_dict_without_the_name_is_the_rows_error(self) -> None:
        with pytest.raises(AsyncUDFError, match=r'by="tenant" finds only x in this row'):
            run_rows(AsDict(), [{"x": 1}], rate_limit=RateLimit(1, by="tenant"))


def test_a_key_is_forgotten_when_its_permits_are_all_there_again() -> None:
    """A task that sees new keys for days must not grow."""
    times = KeyTimes()
    keys = OwnKeys(RateLimit(10, by="tenant"), times)
    for number in range(100_000):
        keys.use(f"tenant {number}", 1.0, number / 1000)
    assert len(times) < 5_000
