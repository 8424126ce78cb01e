"""A run asks Spark without holding up its readers, and ends its display whatever interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from asyncudf._api.monitor import Run, _Progress
from asyncudf._metrics.run_metrics import TaskAttempt


class Watch:
    """Stands for Spark: both of its slow questions call `asked`."""

    def __init__(self, asked: Callable[[], None]) -> None:
        self._asked = asked

    def open(self) -> None: ...

    def close(self) -> None: ...

    def messages(self, timeout: float | None = None) -> Iterator[Any]:
        return iter(())

    def task_count(self, stages: Collection[int]) -> tuple[int, None]:
        return 0, None

    def logged(self) -> Iterator[Any]:
        self._asked()
        yield from ()

    def failed_tasks(self, stages: Collection[int]) -> set[TaskAttempt]:
        self._asked()
        return set()


def run_of(asked: Callable[[], None], *, progress: bool = False) -> Run:
    run = Run(object(), progress)  # type: ignore[arg-type]
    run._watch = Watch(asked)  # type: ignore[assignment]
    return run


def test_the_figures_can_be_read_while_spark_is_asked() -> None:
    """A query for logs held the lock: `run.metrics` and the display waited for as long as it took."""
    free: list[bool] = []
    with (run := run_of(lambda: free.append(not run._lock.locked()))):
        pass
    assert free == [True, True]


def test_an_interrupt_at_the_end_leaves_no_display(capsys: pytest.CaptureFixture[str]) -> None:
    """No later run of the process showed its progress."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    run = run_of(interrupted, progress=True)
    with pytest.raises(KeyboardInterrupt), run:
        assert _Progress.is_shown
    assert run._shown is not None
    assert (run._shown.is_alive(), _Progress.is_shown) == (False, False)
