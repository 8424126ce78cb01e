"""What Spark prints of an error: the message first, then the user's own frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf.testing import run_rows
from tests.kit.errors import as_pyspark, in_a_worker, raised

POLICIES = (
    'With on_error="null", "capture" or "dead_letter" the job goes on without such rows; a sink with dead_letters=.'
)


def told(call: Callable[[], Any], *, full: bool = False, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Spark's handler of exceptions makes of an error, as far as it is ours to say."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    def run() -> None:
        with in_a_worker(full=full):
            call()

    error = raised(partial(as_pyspark(), None, run))
    assert error.__cause__ is None
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("" if full else "1")
    return f"{error}\n{''.join(getattr(error, '__notes__', []))}"


async def asks(city: str) -> int:
    await asyncio.sleep(0)
    return int(json.loads(city)["temp"])


async def waits(city: str) -> int:
    return await asyncio.wait_for(asks(city), 5)


def test_the_users_frames_and_those_of_its_libraries_are_shown_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(lambda: run_rows(waits, ["{"]), monkeypatch=monkeypatch)
    assert text.startswith("waits failed in attempt 1, partition 0, for the input ('{',): JSONDecodeError: ")
    functions = [line.split()[-1] for line in text.splitlines() if line.startswith("  File ")]
    assert functions == ["waits", "asks", "loads", "decode", "raw_decode"]
    assert text.rstrip().endswith("(char 1)")


def test_with_the_switch_all_frames_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(lambda: run_rows(waits, ["{"]), full=True, monkeypatch=monkeypatch)
    assert "/_engine/operators/" in text.replace("\\", "/")
    assert "tasks.py" in text or "timeouts.py" in text


def in_context(worker: contextlib.AbstractContextManager[None]) -> None:
    with worker:
        run_rows(waits, ["{"])


@pytest.mark.parametrize("package", ["pyspark", "pyspark.sql.worker", "pysail.spark", ""])
def test_a_process_that_is_no_worker_of_spark_keeps_its_environment(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """It goes on after the error, with other tasks, and may start a Spark itself."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(AsyncUDFError):
        as_pyspark(package)(None, in_context, in_a_worker(full=False))
    assert os.environ.get("SPARK_HIDE_TRACEBACK") == ("1" if package.startswith("pyspark") else None)


@pytest.mark.parametrize(("value", "full"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_the_switch_is_read_where_the_query_is_planned(
    monkeypatch: pytest.MonkeyPatch, value: str | None, full: bool
) -> None:
    monkeypatch.delenv("ASYNCUDF_FULL_TRACEBACK", raising=False)
    if value is not None:
        monkeypatch.setenv("ASYNCUDF_FULL_TRACEBACK", value)
    worker = in_a_worker()
    monkeypatch.setenv("ASYNCUDF_FULL_TRACEBACK", "0" if full else "1")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(AsyncUDFError):
        as_pyspark()(None, in_context, worker)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("" if full else "1")


def test_the_frames_of_causes_contexts_and_groups_are_the_users_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grouped(city: str) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asks(city))
        except* ValueError as errors:
            raise LookupError("https://me:secret@example.com?key=secret") from errors

    text = told(lambda: run_rows(grouped, ["{"]), monkeypatch=monkeypatch)
    frames = {line.split('"')[1] for line in text.splitlines() if line.strip("| +").startswith("File ")}
    assert frames <= {__file__, json.__file__, json.decoder.__file__}
    assert "The above exception was the direct cause" in text
    assert "JSONDecodeError" in text
    assert "https://***@example.com?***" in text
    assert "secret" not in text.replace('"https://me:secret@example.com?key=secret"', "")  # the line of code


def test_what_has_no_frames_of_the_users_is_told_by_its_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(x: int) -> int:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    text = told(lambda: run_rows(hangs, [1], timeout=5), monkeypatch=monkeypatch)
    assert text == "hangs failed in attempt 1, partition 0, for the input (1,): no result within 5 s\n" + POLICIES


def test_an_error_that_is_none_of_the_librarys_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(EOFError), in_a_worker(full=False):
        raise EOFError
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ""


def test_without_spark_an_error_keeps_its_cause_and_has_no_frames_in_a_note() -> None:
    error = raised(lambda: run_rows(waits, ["{"]))
    assert isinstance(error.__cause__, json.JSONDecodeError)
    assert error.__cause__.__traceback__ is not None
    assert error.__notes__ == [POLICIES]
