"""A signal prints what the tasks of a process wait for, with their stacks; so does a deadlock of the test kit."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import AsyncUDFError
from asyncudf._engine.loop import bridge, watchdog
from asyncudf._engine.loop.stacks import Listener
from asyncudf.testing import VirtualClockLoop, run_rows
from tests.kit.bridges import batch, column, start

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal")
PATIENCE = 60.0  # seconds for what is bound to happen


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    for one in [*Listener._open]:  # of a test before that has not closed its bridge
        one.close()
    before = signal.getsignal(signal.SIGUSR1)
    yield
    assert not Listener._open
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.fixture
def own_handler() -> Iterator[list[int]]:
    """The signals that a handler of the user's gets."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    yield got
    signal.signal(signal.SIGUSR1, before)


async def helper(told: asyncio.Event) -> None:
    await told.wait()


async def signalled(x: int) -> int:
    """Signals the process once all calls wait, and goes on when the main thread has handled that."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def kill() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.call_later(0.2, told.set)

    if x == 0:
        loop.call_later(1.5, lambda: asyncio.ensure_future(kill()))  # after a look, which is once a second
        await helper(told)
    else:
        await asyncio.sleep(1.9)
    return x


def test_a_signal_prints_waits_and_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    assert pa.concat_arrays(column(signalled, [pa.array([0, 1, 2])], "int")).to_pylist() == [0, 1, 2]
    printed = capfd.readouterr().err
    assert f"asyncudf, process {os.getpid()}: what its tasks wait for" in printed
    assert " for a call that does not return, for 3 min at most" in printed
    assert printed.count("in helper\n") == 1
    assert "2 x\n" in printed  # equal stacks once, with their number
    assert "The thread of the event loop is at:" in printed


def test_a_signal_prints_where_a_plain_def_hangs(capfd: pytest.CaptureFixture[str]) -> None:
    """Its coroutine waits in this library: the thread is where the call is."""
    told = threading.Event()

    def hangs_here(x: int) -> int:
        if x == 2:  # the threads of the others are known by now
            os.kill(os.getpid(), signal.SIGUSR1)
        assert told.wait(PATIENCE)
        return x

    before = signal.signal(signal.SIGUSR1, lambda number, frame: told.set())  # called when all is printed
    try:
        assert pa.concat_arrays(column(hangs_here, [pa.array([0, 1, 2])], "int")).to_pylist() == [0, 1, 2]
    finally:
        signal.signal(signal.SIGUSR1, before)
    printed = capfd.readouterr().err
    assert "Its threads that run calls: " in printed
    assert "in hangs_here\n" in printed


def test_a_handler_of_the_users_is_called_too_and_set_back(
    own_handler: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    list(column(signalled, [pa.array([0])], "int"))
    assert own_handler == [signal.SIGUSR1]
    assert "what its tasks wait for" in capfd.readouterr().err
    os.kill(os.getpid(), signal.SIGUSR1)
    assert own_handler == [signal.SIGUSR1] * 2
    assert capfd.readouterr().err == ""


def test_a_handler_that_the_user_sets_meanwhile_stays() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    out = start(signalled).pipe(iter([batch(1)]))
    next(out)
    mine: Any = lambda number, frame: None  # noqa: E731
    signal.signal(signal.SIGUSR1, mine)
    list(out)
    assert signal.getsignal(signal.SIGUSR1) is mine
    signal.signal(signal.SIGUSR1, before)


def test_one_in_c_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """Python cannot call it."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.register(signal.SIGUSR1, file=nowhere)
        try:
            list(column(signalled, [pa.array([0])], "int"))
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert "what its tasks wait for" not in capfd.readouterr().err


def test_one_in_c_that_the_function_sets_stays_too(capfd: pytest.CaptureFixture[str]) -> None:
    """The end of the task had taken it away, so that the signal ended the process."""
    with open(os.devnull, "w") as nowhere:

        async def registers(x: int) -> int:
            faulthandler.register(signal.SIGUSR1, file=nowhere)
            return x

        before = signal.getsignal(signal.SIGUSR1)
        try:
            for _ in range(2):
                list(column(registers, [pa.array([0])], "int"))
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, before)
    assert "what its tasks wait for" not in capfd.readouterr().err


def test_before_the_first_batch_the_signal_ends_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a handler it ends the process."""

    def batches() -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGUSR1)
        yield pa.array([1])

    async def call(x: int) -> int:
        return x

    list(column(call, batches(), "int"))
    assert "call has waited for " in capfd.readouterr().err


def test_tasks_of_other_threads_and_side_by_side_do_not_break_it(capfd: pytest.CaptureFixture[str]) -> None:
    """Only the main thread may set a handler; its handler prints all."""
    done: list[list[int]] = []
    held, told = threading.Event(), threading.Event()

    async def elsewhere(x: int) -> int:
        held.set()
        await asyncio.to_thread(told.wait, PATIENCE)
        return x

    def run() -> None:
        done.append(pa.concat_arrays(column(elsewhere, [pa.array([7])], "int")).to_pylist())

    thread = threading.Thread(target=run)
    thread.start()
    assert held.wait(PATIENCE)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    first, second = (start(signalled).pipe(iter([batch(number)])) for number in (0, 1))
    rows = [next(first), next(second), *first, *second]
    assert sorted(value for part in rows for value in part) == [0, 1]
    told.set()
    thread.join(PATIENCE)
    assert done == [[7]]
    printed = capfd.readouterr().err
    assert "in elsewhere\n" in printed
    assert "in helper\n" in printed


def test_a_deadlock_of_the_kit_says_the_same() -> None:
    async def never(x: int) -> int:
        event = asyncio.Event()
        await helper(event)
        return x

    with pytest.raises(AsyncUDFError, match=r"^deadlock: ") as caught:
        run_rows(never, [1, 2, 3], timeout=None)
    (note,) = caught.value.__notes__
    assert "never has waited for 0 s for a call that does not return, with no time limit" in note
    assert "3 x\n" in note
    assert "in helper\n" in note
    assert f'File "{__file__}", line ' in note


def test_a_deadlock_of_a_loop_alone_shows_its_coroutines() -> None:
    loop = VirtualClockLoop()
    with pytest.raises(AsyncUDFError, match=r"^deadlock: ") as caught:
        loop.run_until_complete(helper(asyncio.Event()))
    loop.close()
    assert "in helper\n" in caught.value.__notes__[0]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SOON", 0.5)
    monkeypatch.setattr(bridge, "LONG", 0.2)


def waits_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if " waited for " in text]


@pytest.mark.usefixtures("soon")
def test_a_loop_that_makes_no_turn_while_something_opens_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The loop itself can say nothing: a model that takes minutes to load, in an `open` that does not await."""
    logged = threading.Event()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "blocks the event loop" in record.getMessage():
                logged.set()

    class Client:
        async def __aenter__(self) -> None:
            assert logged.wait(PATIENCE)

        async def __aexit__(self, *error: object) -> None: ...

    async def call(x: int, client: Any) -> int:
        return x

    handler = Watching()
    logging.getLogger("asyncudf").addHandler(handler)
    try:
        list(start(call, resources={"client": Client}).pipe(iter([batch(1)])))
    finally:
        logging.getLogger("asyncudf").removeHandler(handler)
    first, *_ = waits_of(caplog)
    assert "for code that blocks the event loop, with no time limit; to change it: an asynchronous client" in first
    assert "in __aenter__" in first


@pytest.mark.usefixtures("soon")
def test_input_that_does_not_come_is_told_before_there_is_a_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    told: list[str] = []

    class Waits(bridge.TaskWaits):
        def __init__(self, clock: Any, tell: Any) -> None:
            super().__init__(lambda: clock() + 31 * bool(self._looks), told.append)
            self._looks = 0

        def look(self, waits: Any) -> None:
            super().look(waits)
            self._looks += 1
            if told:
                looked.set()

    monkeypatch.setattr(bridge, "TaskWaits", Waits)

    def batches() -> Iterator[Any]:
        assert looked.wait(PATIENCE)
        yield pa.array([1])

    async def call(x: int) -> int:
        return x

    assert pa.concat_arrays(column(call, batches(), "int")).to_pylist() == [1]
    (line,) = told
    assert line.startswith("call has waited for 31 s for input: what comes before in the query has given no row, ")
