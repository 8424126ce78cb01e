"""Figures of running tasks on their way to the driver: who may tell them, and that nobody waits for anybody."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncudf._spark.monitoring.live import (
    HEAD,
    MAX_CONNECTIONS,
    MAX_MESSAGE_BYTES,
    NONCE_BYTES,
    PER_SECOND,
    LiveReporter,
    LiveServer,
)
from asyncudf._spark.monitoring.task_report import REGISTRY, Channels, MonitorRequest, TaskReportSpec

SECRET = b"s" * 32
HELLO = NONCE_BYTES + 1
LIVE = "asyncudf._spark.monitoring.live"
WAIT = 60.0  # seconds; only a failure takes so long


class Driver:
    """A server, and what it has heard."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.goes_on = threading.Event()  # it waits for this when it has heard something
        self.goes_on.set()
        self.server = LiveServer("127.0.0.1", SECRET, self.hear, self.lost.put)
        self.address = ("127.0.0.1", self.server.port)

    def hear(self, message: dict[str, Any]) -> None:
        self.heard.put(message)
        self.goes_on.wait(WAIT)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.server.close()


@pytest.fixture(autouse=True)
def _all_reachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also on a machine that is busy with something else for some seconds."""
    monkeypatch.setattr(f"{LIVE}.TIMEOUT", WAIT)
    yield
    LiveReporter._unreachable.clear()


def test_messages_arrive_in_their_order(driver: Driver) -> None:
    """What a task tells is heard, the last word before `close` returns."""
    reporter = LiveReporter(driver.address, SECRET)
    for number in range(3):
        reporter.send({"n": number})
        assert driver.heard.get(timeout=WAIT) == {"n": number}
    reporter.close({"n": "last"})
    assert driver.heard.get_nowait() == {"n": "last"}
    assert driver.lost.get(timeout=WAIT) == {"n": "last"}


def test_a_message_may_be_large(driver: Driver) -> None:
    """What the socket does not take at once follows with the next words."""
    reporter = LiveReporter(driver.address, SECRET)
    reporter.send({"text": "x" * 3_000_000})
    reporter.close({"text": "y" * 3_000_000})
    heard = [driver.heard.get(timeout=WAIT)["text"][0] for _ in "xy"]
    assert heard == ["x", "y"]


def test_who_does_not_know_the_secret_is_not_heard(driver: Driver) -> None:
    """A message with another tag ends its connection, and is delivered to nobody."""
    reporter = LiveReporter(driver.address, b"x" * 32)
    reporter.close({"n": 1})
    good = LiveReporter(driver.address, SECRET)
    good.close({"n": 2})
    assert driver.heard.get(timeout=WAIT) == {"n": 2}
    assert driver.heard.empty()


def recorded(driver: Driver) -> tuple[bytes, Callable[[], socket.socket]]:
    """A true message as it goes over the wire, and how to connect anew."""
    sent = []

    class Tapped(LiveReporter):
        def _framed(self, message: Any) -> bytes:
            sent.append(super()._framed(message))
            return sent[-1]

    Tapped(driver.address, SECRET).close({"n": 1})
    assert driver.heard.get(timeout=WAIT) == {"n": 1}
    return sent[0], lambda: socket.create_connection(driver.address, timeout=WAIT)


def test_a_message_that_was_overheard_is_worth_nothing(driver: Driver) -> None:
    """Each connection has a number of its own in its tags: the same bytes prove nothing in another one."""
    message, connect = recorded(driver)
    with connect() as again:
        assert len(again.recv(HELLO, socket.MSG_WAITALL)) == HELLO
        again.sendall(message)
        assert again.recv(1) == b""
    assert driver.heard.empty()


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n" * 10, HEAD.pack(MAX_MESSAGE_BYTES + 1, b""), HEAD.pack(0, b"t" * 32), b"\0"],
    ids=["http", "too large", "empty", "cut off"],
)
def test_garbage_ends_its_connection_alone(driver: Driver, garbage: bytes) -> None:
    """Whatever comes in, the server goes on."""
    other = LiveReporter(driver.address, SECRET)
    with socket.create_connection(driver.address, timeout=WAIT) as stranger:
        stranger.recv(HELLO, socket.MSG_WAITALL)
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    other.close({"n": 1})
    assert driver.heard.get(timeout=WAIT) == {"n": 1}
    assert driver.heard.empty()


def test_a_driver_that_cannot_be_reached_is_tried_once() -> None:
    """Nobody listens: the worker goes on without, and the next task of its process does not try."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = bound.getsockname()
    reporter = LiveReporter(address, SECRET)
    reporter.send({"n": 1})
    reporter.close({"n": 2})
    with socket.create_server(address) as server:
        server.settimeout(0)
        LiveReporter(address, SECRET).close({"n": 3})
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_driver_that_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, says its number and reads no more: messages are left out, and the end comes after TIMEOUT.

    Here it is short for the end alone: nothing before the end may wait for it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        address = server.getsockname()

        accepted: list[socket.socket] = []

        def accept() -> None:
            accepted.append(server.accept()[0])
            accepted[0].sendall(b"n" * HELLO)

        thread = threading.Thread(target=accept)
        thread.start()
        reporter = LiveReporter(address, SECRET)
        thread.join()
        for _ in range(20):
            reporter.send({"text": "x" * 1_000_000})
        monkeypatch.setattr(f"{LIVE}.TIMEOUT", 0.1)
        reporter.close({"text": "x" * 10_000_000})
        accepted[0].close()


def test_a_server_that_cannot_be_started_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its port, whether it has no address or not even an event loop."""
    with pytest.raises(OSError, match=r"."):
        LiveServer("203.0.113.1", SECRET, print, print)  # an address of no machine

    def no_files() -> None:
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.new_event_loop", no_files)
    monkeypatch.setattr("asyncio.events.new_event_loop", no_files)
    with pytest.raises(OSError, match="too many open files"):
        LiveServer("127.0.0.1", SECRET, print, print)


def test_the_driver_closes_while_tasks_go_on(driver: Driver) -> None:
    """A monitor that has ended is no fault of the task."""
    reporter = LiveReporter(driver.address, SECRET)
    reporter.send({"n": 1})
    assert driver.heard.get(timeout=WAIT) == {"n": 1}
    closing = LiveServer("127.0.0.1", SECRET, driver.heard.put, driver.lost.put)
    other = LiveReporter(("127.0.0.1", closing.port), SECRET)
    closing.close()
    for _ in range(3):
        other.send({"n": 2})
    other.close({"n": 3})
    assert driver.heard.empty()
    reporter.close({"n": 4})
    assert driver.heard.get(timeout=WAIT) == {"n": 4}


def test_the_driver_says_that_live_figures_are_those_of_a_sample(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond so many connections tasks were left out in silence; one warning, however many there are."""
    monkeypatch.setattr(f"{LIVE}.MAX_CONNECTIONS", 1)
    first = LiveReporter(driver.address, SECRET)
    others = [LiveReporter(driver.address, SECRET) for _ in range(2)]
    first.send({"n": 1})
    assert driver.heard.get(timeout=WAIT) == {"n": 1}
    for other in others:
        other.close({"n": 2})
    assert driver.heard.empty()
    (record,) = caplog.records
    assert "live figures from 1 tasks at once, and more are running" in record.message
    assert "figures are those of a sample" in record.message


def test_tasks_that_begin_at_once_are_all_answered_when_the_driver_has_time(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 waited until the driver took them; a worker of the others gave up after a second, also for its next tasks.

    The driver has the 500 first ones send less often: 500 messages in a second took a tenth of a core. Here each number
    is a fifth of the real one, for a process may open few files.
    """
    monkeypatch.setattr(f"{LIVE}.MAX_CONNECTIONS", MAX_CONNECTIONS // 5)
    monkeypatch.setattr(f"{LIVE}.PER_SECOND", PER_SECOND // 5)
    driver.goes_on.clear()
    first = LiveReporter(driver.address, SECRET)
    first.send({"n": 1})
    assert driver.heard.get(timeout=WAIT) == {"n": 1}, "and then it waits"
    tasks = [socket.create_connection(driver.address, timeout=WAIT) for _ in range(120)]
    driver.goes_on.set()
    answers = [task.recv(HELLO, socket.MSG_WAITALL) for task in tasks]
    intervals = [first.interval, *(answer[NONCE_BYTES] for answer in answers if answer)]
    assert len(intervals) == MAX_CONNECTIONS // 5
    assert (min(intervals), max(intervals)) == (1, 13)
    assert sum(1 / interval for interval in intervals) < 130 / 5
    late = LiveReporter(driver.address, SECRET)
    assert late._socket is None
    first.drop()
    for task in tasks:
        task.close()


def test_the_secret_is_in_no_message_and_no_property() -> None:
    """What travels in the open, or is shown, says nothing of it."""
    report_spec = TaskReportSpec("column", channels=Channels(b"accumulator", REGISTRY.secret, REGISTRY.notice))
    shown = repr(report_spec) + str(report_spec) + MonitorRequest(["run"], ("127.0.0.1", 1)).to_property()
    assert repr(REGISTRY.secret)[2:-1] not in shown
    assert REGISTRY.secret.hex() not in shown


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="only Linux shows the timers of a connection")
def test_the_system_looks_whether_a_silent_connection_has_another_end(driver: Driver) -> None:
    """One of a machine that was switched off kept its place until the monitor closed."""
    with socket.create_connection(driver.address, timeout=WAIT) as connection:
        assert len(connection.recv(HELLO, socket.MSG_WAITALL)) == HELLO
        ends = [f"{end[1]:04X}" for end in (driver.address, connection.getsockname())]
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (timer,) = [line[5] for line in lines if [line[1][-4:], line[2][-4:]] == ends]
        kind, left = timer.split(":")
        assert kind == "02"  # keepalive
        assert int(left, 16) / os.sysconf("SC_CLK_TCK") <= 60
