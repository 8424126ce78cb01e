"""Progress while a run goes on: the display that suits where the program runs, and that never fails."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from .displays import Display, LogDisplay, NotebookDisplay, TerminalDisplay
from .pace import Snapshot

__all__ = ("progress_display",)


WRONG = (Exception, SystemExit)  # what a display may raise; an interrupt is the user's


def progress_display(stream: TextIO | None = None) -> CarefulDisplay:
    """A display for where the program runs: a terminal, a notebook, or a log.

    It never fails: when nothing can be shown any more it ends silently. Any thread may use it. Making a snapshot costs
    more than showing it: two in a second are enough.

    Args:
        stream: where to write; left out it is the notebook, or stderr.
    """
    return CarefulDisplay(lambda: _display_for(stream))


def _display_for(stream: TextIO | None) -> Display:
    if stream is None and _is_notebook():
        return NotebookDisplay()
    stream = stream or sys.stderr
    if stream is None:
        raise OSError("there is nothing to write to")
    if stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
        with contextlib.suppress(ImportError):  # without rich: lines
            from rich.console import Console

            class Pipe(Console):
                def on_broken_pipe(self) -> None:
                    raise  # rich would close the program's stdout and end it

            return TerminalDisplay(Pipe(file=stream, highlight=False))
    return LogDisplay(stream)


def _is_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class CarefulDisplay:
    """Shows nothing any more once something went wrong: progress must not end a job."""

    # Locked: figures come from a thread, and the run may end meanwhile. What is shown last must be the end.

    def __init__(self, make: Callable[[], Display]) -> None:
        self._lock = threading.Lock()
        self._inner: Display | None = None
        with contextlib.suppress(*WRONG):
            self._inner = make()

    def show(self, snapshot: Snapshot) -> None:
        """The run goes on."""
        with self._lock:
            try:
                if self._inner is not None:
                    self._inner.show(snapshot)
            except WRONG:
                self._give_up()

    def close(self, snapshot: Snapshot) -> None:
        """The run is over; what is shown now remains."""
        with self._lock:
            try:
                if self._inner is not None:
                    self._inner.close(snapshot)
            except WRONG:
                pass
            finally:
                self._give_up()

    def _give_up(self) -> None:
        inner, self._inner = self._inner, None
        with contextlib.suppress(*WRONG):
            if inner is not None:
                inner.give_up()
