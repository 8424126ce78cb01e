"""Limits of the whole job have the coordinator of the session whose rows they are for, whichever session is active."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncudf import (
    DEAD_LETTERS,
    AsyncStream,
    LookupTable,
    OptionError,
    RateLimit,
    async_pandas_udf,
    async_sink,
    ordered_wait,
    rehearse,
)
from asyncudf._spark import loopback
from tests.kit.sail import sail_session

pytest.importorskip("pysail.spark", reason="Sail is not installed: scripts/test --sail")


@async_pandas_udf("long", rate_limit=RateLimit(1000))
async def look(key: int) -> int:
    return 2 * key


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Any]:
    """A session whose functions run where this process is not known to be reached."""
    with sail_session() as session, pytest.MonkeyPatch.context() as patch:
        patch.setitem(loopback._here, session, False)
        yield session


@pytest.fixture(autouse=True)
def no_default(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the first session of the process has ended."""
    monkeypatch.setattr(type(spark), "_default_session", None)


def in_a_thread(active: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives in a thread of its own, in which this session is active, or none."""

    def begin() -> Any:
        if active is not None:
            type(active)._set_default_and_active_session(active)
        found = SparkSession.getActiveSession()
        assert found is active
        return call(*arguments)

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(begin).result()


def letters_again(df: Any) -> Any:
    """The dead letters of a chain, which another chain reads."""

    async def bad(key: int) -> int:
        raise ValueError(key)

    stream = AsyncStream(df).ordered_wait(bad, "key", on_error="dead_letter", max_failures=None)
    with stream.side_output(DEAD_LETTERS).ordered_wait(look, "key") as again:
        return again.collect()


DOORS: dict[str, Callable[[Any, Path], Any]] = {
    "operator": lambda df, _: ordered_wait(df, look, "key").collect(),
    "behind a side output": lambda df, _: letters_again(df),
    "sink": lambda df, _: async_sink(df, look, "key"),
    "lookup table": lambda df, folder: LookupTable(df.sparkSession, str(folder / "table"), look).update(df),
    "rehearse": lambda df, _: rehearse(df, look, "key", sample=2),
    "SQL function": lambda df, _: look.register(df.sparkSession, "look"),
}


def keys_of(session: Any) -> Any:
    return session.range(4).withColumnRenamed("id", "key")


@pytest.mark.parametrize("door", DOORS)
def test_a_session_has_its_own_though_another_one_is_active(
    spark: Any, elsewhere: Any, door: str, tmp_path: Path
) -> None:
    """It was told of the active one that there is none."""
    in_a_thread(elsewhere, DOORS[door], keys_of(spark), tmp_path)


@pytest.mark.parametrize("door", sorted(DOORS.keys() - {"rehearse"}))
def test_a_session_without_one_is_told_so_though_another_one_is_active(
    spark: Any, elsewhere: Any, door: str, tmp_path: Path
) -> None:
    """It got that of the active one, which its tasks do not reach."""
    with pytest.raises(OptionError, match="the driver can start no coordinator"):
        in_a_thread(spark, DOORS[door], keys_of(elsewhere), tmp_path)


@pytest.mark.parametrize("door", DOORS)
def test_a_thread_without_a_session_takes_that_of_the_rows(spark: Any, door: str, tmp_path: Path) -> None:
    """It ended with NO_ACTIVE_OR_DEFAULT_SESSION."""
    in_a_thread(None, DOORS[door], keys_of(spark), tmp_path)


def test_a_column_has_no_rows_and_says_what_has(spark: Any) -> None:
    with pytest.raises(OptionError, match=r"look has limits .* none is active in this thread. Use the operator"):
        in_a_thread(None, look, "key")
