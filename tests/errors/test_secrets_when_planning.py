"""Errors of a declaration name the value that was given, and keep the secrets of its URLs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncudf import AsyncStream, AsyncUDFError, OutputTag, RetryStrategy, async_pandas_udf
from asyncudf.testing import run_rows, run_stream

ROOT = Path(__file__).parents[2]
URL = "postgresql://user:SECRET@host/db"


async def create_pool(url: str) -> Any: ...


def sync_pool(url: str) -> list[str]:
    return [url]


async def call(x: int, client: Any = None) -> int:
    return x


def in_stream(build: Callable[[AsyncStream], Any]) -> None:
    run_stream(build, [{"x": 1}], "x int")


MISTAKES: dict[str, Callable[[], Any]] = {
    "a resource that is a partial": lambda: async_pandas_udf(
        call, "int", resources=functools.partial(create_pool, URL)
    ),
    "a resource that is a text": lambda: async_pandas_udf(call, "int", resources={"client": URL}),  # type: ignore[dict-item]
    "a resource that is no manager": lambda: run_rows(
        call, [1], resources={"client": functools.partial(sync_pool, URL)}
    ),
    "a function": lambda: async_pandas_udf("int")(URL),  # type: ignore[arg-type, type-var]
    "an option": lambda: async_pandas_udf(call, "int", timeout=URL),  # type: ignore[call-overload]
    "a choice": lambda: async_pandas_udf(call, "int", on_error=URL),  # type: ignore[call-overload]
    "redact": lambda: async_pandas_udf(call, "int", redact=URL),  # type: ignore[call-overload]
    "a retry": lambda: async_pandas_udf(call, "int", retry=URL),
    "an attempt": lambda: RetryStrategy.fixed_delay(attempts=URL, delay=1),  # type: ignore[arg-type]
    "a return type": lambda: async_pandas_udf(call, {URL}),  # type: ignore[call-overload]
    "a map": lambda: in_stream(lambda s: s.map(URL)),  # type: ignore[arg-type]
    "a process": lambda: in_stream(lambda s: s.process(URL)),  # type: ignore[arg-type]
    "a tag": lambda: OutputTag("tag", {URL}),
    "a strategy": lambda: in_stream(lambda s: s.assign_timestamps_and_watermarks(URL)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", MISTAKES)
def test_the_message_of_a_mistake_has_the_url_without_its_password(case: str) -> None:
    with pytest.raises(AsyncUDFError, match=r"postgresql://\*\*\*@host/db") as failed:
        MISTAKES[case]()
    assert "SECRET" not in str(failed.value)


@pytest.mark.parametrize("path", sorted(ROOT.glob("udfs/**/*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_message_shows_a_value_that_was_given_by_its_own_repr(path: Path) -> None:
    assert re.findall(r"not \{[\w.]+!r\}", path.read_text()) == [], "safe_repr(value) keeps secrets and is short"
