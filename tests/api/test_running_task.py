"""What a task knows of itself where its engine has no TaskContext, and shares its process with others."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import ResultStore
from asyncudf._arrow.rows import warm_up
from asyncudf._engine.calls.resources import _instead_of
from asyncudf._spark import running_task
from asyncudf._spark.running_task import MARKS, RunningTask, unmarked
from asyncudf._stores.base import of_task


def marked(query: int, partition: int, rows: int = 2) -> pa.RecordBatch:
    """Rows as an operator gets them."""
    columns = {"key": [*range(rows)], MARKS[0]: [query] * rows, MARKS[1]: [partition] * rows}
    return pa.RecordBatch.from_pydict(columns)


def test_rows_say_which_task_is_theirs() -> None:
    task = RunningTask.of_rows(marked(7, 3))
    assert (task.query, task.rows, task.partition, task.stage) == ("query of 7", "3", 3, None)
    assert unmarked(marked(7, 3)).to_pydict() == {"key": [0, 1]}


def test_columns_of_users_are_no_marks() -> None:
    """Only both, at the end, are some."""
    for names in (MARKS[:1], MARKS[1:], [*MARKS, "key"], MARKS[::-1]):
        batch = pa.RecordBatch.from_pydict({name: [1] for name in names})
        assert unmarked(batch) is batch
        assert RunningTask.of_rows(batch).query is None


def test_two_tasks_of_one_query_have_rows_of_their_own_and_an_attempt_again_has_the_same() -> None:
    first, other, again = (RunningTask.of_rows(marked(7, partition)) for partition in (0, 1, 0))
    assert first.query == other.query == again.query
    assert first.rows == again.rows != other.rows


def test_a_column_knows_its_query_alone() -> None:
    tasks = [RunningTask.of_column(pa.array([7, 7])) for _ in range(2)]
    assert tasks[0].query == tasks[1].query == "query of 7"
    assert tasks[0].rows != tasks[1].rows


def test_who_is_told_nothing_is_a_query_alone() -> None:
    tasks = [RunningTask.now() for _ in range(2)]
    assert [task.query for task in tasks] == [None, None]
    assert tasks[0].rows != tasks[1].rows
    assert tasks[0].property_of("spark.jobGroup.id") is None


def test_functions_of_a_task_count_together_while_another_task_begins() -> None:
    """They were forgotten, and two uses had one number: their failures counted once."""
    tasks = [RunningTask.of_rows(marked(7, partition)) for partition in (0, 1, 0)]
    numbers = [next(task.uses().setdefault("look", itertools.count())) for task in tasks]
    assert numbers == [0, 0, 1]


def test_the_oldest_tasks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_task, "_uses", {})
    for query in range(running_task.TASKS + 5):
        RunningTask.of_rows(marked(query, 0)).uses()
    assert len(running_task._uses) == running_task.TASKS
    assert (4, 0) not in running_task._uses


def test_stores_of_one_process_with_other_sizes_have_other_folders() -> None:
    """In one folder the smaller one would delete what is in the larger one."""
    small, large = (of_task(ResultStore.executor(max_bytes=size), set()) for size in (2**24, 2**26))
    folders = [store.location._folder for store in (small, large)]  # type: ignore[attr-defined]
    assert folders[0] != folders[1]


def test_two_tasks_that_look_for_a_mistake_at_once_leave_warnings_on() -> None:
    """The first leaves before the second, which had found them off."""
    has_begun, has_left = threading.Event(), threading.Event()

    class First:
        @property
        def part(self) -> None:
            second.start()
            assert has_begun.wait(10)

    class Second:
        @property
        def part(self) -> None:
            has_begun.set()
            assert has_left.wait(10)

    second = threading.Thread(target=_instead_of, args=(Second(),))
    before = [*warnings.filters]
    _instead_of(First())
    has_left.set()
    second.join()
    assert [*warnings.filters] == before


def test_objects_of_a_process_that_is_no_worker_stay_collectable(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[Any] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    warm_up([], takes_vectors=False, moves_rows=False, is_worker=False)
    assert not frozen
    warm_up([], takes_vectors=False, moves_rows=False, is_worker=True)
    assert frozen
