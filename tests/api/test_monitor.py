"""A monitor holds up no readers while it asks Spark, and leaves neither a display nor a setting behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from asyncudf._observe.run_metrics import TaskAttempt
from asyncudf._spark.api.monitor import Run, _DisplayThread
from asyncudf._spark.monitoring.job_watch import JobWatch
from asyncudf._spark.monitoring.task_report import SESSION_CONF, WORKER_LOGS


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
        assert _DisplayThread.is_shown
    assert run._shown is not None
    assert (run._shown.is_alive(), _DisplayThread.is_shown) == (False, False)


class ConnectSession:
    """A Spark Connect session, as far as a monitor sets something in it; `refused` cannot be set."""

    def __init__(self, before: str | None = None, *, refused: str = "") -> None:
        self.conf, self._refused = self, refused
        self.values = {} if before is None else {WORKER_LOGS: before}
        self.has_ended = False

    def _answer(self, name: str = "") -> None:
        if self.has_ended:
            raise ConnectionError("the session has ended")
        if name and name == self._refused:
            raise AnalysisException(f"{name} cannot be set")

    def isModifiable(self, name: str) -> bool:  # noqa: N802 - Spark's name
        self._answer()
        return True

    def get(self, name: str, default: str | None) -> str | None:
        self._answer()
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self._answer(name)
        self.values[name] = value

    def unset(self, name: str) -> None:
        self._answer(name)
        self.values.pop(name, None)


def watch_of(session: ConnectSession) -> JobWatch:
    return JobWatch(session, lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [None, "false"])
@pytest.mark.parametrize("first_closed", [0, 1])
def test_the_last_monitor_of_a_session_restores_what_the_first_has_found(before: str | None, first_closed: int) -> None:
    session = ConnectSession(before)
    found, watches = dict(session.values), [watch_of(session), watch_of(session)]
    for watch in watches:
        watch.open()
    watches.pop(first_closed).close()
    assert session.values[WORKER_LOGS] == "true"
    watches.pop().close()
    assert session.values == found


def test_nothing_is_remembered_of_a_session_that_has_ended() -> None:
    """A later session with the same `id` logged nothing: there were no figures, and no warning."""
    session = ConnectSession()
    (watch := watch_of(session)).open()
    session.has_ended = True
    watch.close()
    assert not JobWatch._logs_before


@pytest.mark.parametrize("refused", [WORKER_LOGS, SESSION_CONF])
def test_a_session_that_refuses_a_setting_is_left_as_it_was(refused: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where it let the first be set and not the second, the first stayed."""
    session = ConnectSession("false", refused=refused)
    (watch := watch_of(session)).open()
    assert "gets no figures from this session" in caplog.text
    watch.close()
    assert session.values == {WORKER_LOGS: "false"}
    assert not JobWatch._logs_before
