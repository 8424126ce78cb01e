"""Whether a session's functions run on this machine is found out by one of them, over a real socket."""

from __future__ import annotations

import socketserver
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import OptionError
from asyncudf._spark import _compat, loopback
from asyncudf._spark.coordinators import coordinator_url
from asyncudf._spark.loopback import ReadTask, runs_here


class Session:
    """Of Spark Connect: its server has a host and a master, and `reaches` runs a function there."""

    version = "4.2.0"

    def __init__(
        self,
        reaches: Callable[[ReadTask], Iterator[pa.RecordBatch]],
        host: str = "localhost",
        answer: str = "0.7.2",
        master: str | None = None,
    ) -> None:
        self.client = types.SimpleNamespace(host=host)
        self.conf = {} if master is None else {"spark.master": master}
        self.reaches, self.answer, self.asked = reaches, answer, 0

    def sql(self, query: str) -> Any:
        return types.SimpleNamespace(collect=lambda: [(self.answer,)])

    def range(self, rows: int) -> Any:
        return types.SimpleNamespace(mapInArrow=self.mapped)

    def mapped(self, task: ReadTask, schema: str) -> Any:
        self.asked += 1
        return types.SimpleNamespace(collect=lambda: [tuple(row.values()) for row in rows_of(self.reaches(task))])


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def here(task: ReadTask) -> Iterator[pa.RecordBatch]:
    return task(iter([pa.RecordBatch.from_pydict({"id": [0]})]))


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """Of a service that is on the other machine at the same port."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"SSH-2.0-\xff\r\n")

    with socketserver.TCPServer((loopback.LOCAL, 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def closed_port() -> int:
    with socketserver.TCPServer((loopback.LOCAL, 0), socketserver.BaseRequestHandler) as server:
        return server.server_address[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_a_server_whose_tasks_read_our_word_is_here(host: str) -> None:
    session = Session(here, host)
    assert runs_here(session)
    assert runs_here(session)
    assert session.asked == 1


def test_a_tunnel_to_another_machine_is_not(other_port: int, closed_port: int) -> None:
    """There the port is closed, or somebody else's."""
    for port in (other_port, closed_port):
        assert not runs_here(Session(lambda task, port=port: here(ReadTask(port))))  # type: ignore[misc]


def test_a_server_on_which_no_function_runs_says_so_until_one_does() -> None:
    """As before `ship`, and after."""

    def no_python(task: ReadTask) -> Iterator[pa.RecordBatch]:
        raise RuntimeError("No module named 'asyncudf'")

    session: Any = Session(no_python)
    told = r"can start no coordinator .*a task was sent to find out .*failed.*: No module named 'asyncudf'"
    for _ in range(2):
        with pytest.raises(OptionError, match=told):
            coordinator_url(None, session)
    session.reaches = here
    assert runs_here(session)


def test_an_address_of_another_machine_is_not_asked() -> None:
    session = Session(here, "spark.example.com")
    assert not runs_here(session)
    assert session.asked == 0


@pytest.mark.parametrize(
    ("master", "is_here"),
    [("local[2]", True), ("local", True), ("yarn", False), ("local-cluster[1,1,1]", False), (None, False)],
)
def test_spark_on_this_machine_may_have_executors_on_others(master: str | None, is_here: bool) -> None:
    """One task would not show it."""
    assert runs_here(Session(here, answer="4.2.0 0123456789abcdef", master=master)) is is_here
    assert _compat.SPARK.runs_functions_itself is False


def test_nothing_is_left_behind() -> None:
    before = threading.active_count()
    runs_here(Session(here))
    assert threading.active_count() == before
