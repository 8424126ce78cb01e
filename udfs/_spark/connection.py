"""The worker's connection to Spark: nothing stays in its buffer, and Spark's closing it is seen."""

from __future__ import annotations

import errno
import io
import select
import sys
from collections.abc import Callable
from typing import Any

__all__ = ("flusher",)


# Linux tells that the other end is closed while ours is open; the other systems tell a writer.
_IS_CLOSED = getattr(select, "POLLRDHUP", 0)


def flusher() -> Callable[[], None]:
    """A function that brings what Spark's thread has handed over to Spark, out of the buffer of 64 KB on the way.

    It raises an OSError once Spark has closed its end: after a LIMIT, a cancelled job, a failed neighbour. Make and
    call it in Spark's thread. PySpark tells nobody its connection, so it is looked for in the frames that called us;
    if none has it, the function does nothing: then Spark gets rows when the buffer is full, and a write that fails
    is what tells of its end.
    """
    stream = _stream_to_spark()
    if stream is None:
        return lambda: None
    has_closed = _watch(stream)

    def settle() -> None:
        stream.flush()
        if has_closed():
            raise BrokenPipeError(errno.EPIPE, "Spark has closed its end: it needs no more rows, or the job has ended")

    return settle


def _stream_to_spark() -> io.BufferedIOBase | None:
    """The stream that PySpark's worker writes to, from the frame that has it; None if none has."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        # pyspark.worker or pyspark.daemon, also where it runs as __main__
        if frame.f_globals.get("__package__") == "pyspark" and "outfile" in frame.f_code.co_varnames:
            found = frame.f_locals.get("outfile")
            return found if isinstance(found, io.BufferedIOBase) else None
    return None


def _watch(stream: io.BufferedIOBase) -> Callable[[], Any]:
    """Tells whether the other end is closed; always no, where the system or the stream cannot say."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), _IS_CLOSED)
    except OSError:  # a pair of streams has no number: Spark without its daemon
        return lambda: False
    return lambda: poll.poll(0)
