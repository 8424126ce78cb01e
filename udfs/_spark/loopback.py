"""Whether the functions of a Spark Connect session run on this machine: a task is sent to find out."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import secrets
import socket
import socketserver
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ._compat import engine_of, setting
from .pickling import Travelling

LOCAL = "127.0.0.1"
GREETED_WITHIN = 5.0  # seconds for a connection of this machine to itself
WORD = pa.schema({"word": pa.string()})

_here: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # by session; asked once


def is_of_one_host(host: str | None) -> bool:
    """Whether each machine reaches itself at this address."""
    if not host or host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def runs_here(session: Any) -> bool:
    """Whether all tasks of a Spark Connect session reach what listens at this machine's own loopback.

    An address on this machine may lead through a tunnel, or into a container. So a task reads a word at a port of this
    process: only one that shares the loopback finds it there. Raises what that task has failed with, and what is asked
    next sends another one.
    """
    if not _is_local(session):
        return False
    if session not in _here:
        _here[session] = _reads_our_word(session)
    return _here[session]


def _is_local(session: Any) -> bool:
    """Whether the server has an address of this machine, and leaves no task to another."""
    if not is_of_one_host(getattr(session.client, "host", "unknown")):
        return False
    return engine_of(session).runs_functions_itself or setting(session, "spark.master").split("[")[0] == "local"


def _reads_our_word(session: Any) -> bool:
    word = secrets.token_hex(32)
    with _greeting(word) as port:
        rows = session.range(1).mapInArrow(ReadTask(port), "word string").collect()
    return [row[0] for row in rows] == [word]


@dataclasses.dataclass(frozen=True)
class ReadTask(Travelling):
    """For `mapInArrow`: what this machine says at a port of its loopback; no rows if it says nothing."""

    port: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with contextlib.suppress(OSError), socket.create_connection((LOCAL, self.port), GREETED_WITHIN) as stream:
                said = stream.makefile("rb").read(1000)
                yield pa.RecordBatch.from_pylist([{"word": said.decode("ascii", "replace")}], WORD)


@contextlib.contextmanager
def _greeting(word: str) -> Iterator[int]:
    """The port of a server on loopback that says a word to each connection."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(word.encode())

    with socketserver.TCPServer((LOCAL, 0), Greeter) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="asyncudf-loopback", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
