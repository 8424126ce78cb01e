"""Progress while a run goes on: in a terminal, a notebook or a log, and without ever failing a job."""

from __future__ import annotations

import contextlib
import html
import importlib
import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from .progress import FunctionProgress, ProgressTracker, Snapshot, line, lines, tasks

if TYPE_CHECKING:
    from rich.console import Console

WRONG = (Exception, SystemExit)  # what a display may raise; an interrupt is the user's
REDRAWN = 0.1  # seconds between two pictures in a terminal, at least
UPDATED = 0.5  # and in a notebook, where each goes through the browser
LOGGED = 10.0  # and between two lines about a function in a log


def progress_display(stream: TextIO | None = None) -> Display:
    """A display for where the program runs: a terminal, a notebook, or a log; it writes to the stream, if one is given.

    Making a snapshot costs more than showing it: two in a second are enough.
    """
    with contextlib.suppress(*WRONG):  # also without anything to write to
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if stream is None and getattr(shell, "kernel", None) is not None:
            return NotebookDisplay()
        if (stream := stream or sys.stderr) is None:  # a program without a console
            return Display()
        if stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
            with contextlib.suppress(ImportError):  # without rich: lines
                from rich.console import Console

                class Pipe(Console):
                    def on_broken_pipe(self) -> None:
                        raise  # rich would close the program's stdout and end it

                return TerminalDisplay(Pipe(file=stream, highlight=False))
        return LogDisplay(stream)
    return Display()


class Display:
    """Shows how far a run is, as often as there is news; this one shows nothing.

    It shows nothing more once it has failed: progress must not end a job. Any thread may use it.
    """

    # Locked: figures come from a thread, and the run may end meanwhile. What is shown last must be the end.

    interval = 0.0  # seconds between two pictures, at least

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracker = ProgressTracker()
        self._shown = -math.inf
        self._has_ended = False

    def show(self, snapshot: Snapshot, *, is_over: bool = False) -> None:
        with self._lock:
            if self._has_ended:
                return
            try:
                functions = self._tracker.track(snapshot, is_over=is_over)
                if is_over or snapshot.seconds - self._shown >= self.interval:
                    self._shown = snapshot.seconds
                    self._draw(functions, snapshot)
                self._has_ended = is_over
            except WRONG:
                self._has_ended = True
            if self._has_ended:
                with contextlib.suppress(*WRONG):
                    self._give_up()

    def close(self, snapshot: Snapshot) -> None:
        """The run is over; what is shown now remains."""
        self.show(snapshot, is_over=True)

    def _draw(self, functions: Sequence[FunctionProgress], snapshot: Snapshot) -> None:
        """Show this, in place of what was shown before."""

    def _give_up(self) -> None:
        """Let go of what the display holds, in whatever state it is."""


class TerminalDisplay(Display):
    """Redraws the line of each function, and one of the tasks, below what the program prints."""

    # Drawn here and not by rich's own thread: an error in that would be printed, and end nothing.

    interval = REDRAWN

    def __init__(self, console: Console) -> None:
        from rich.live import Live
        from rich.text import Text

        super().__init__()
        self._console, self._text = console, Text
        # rich takes what is printed, to show it above. What goes to a file must not come out here.
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )

    def _draw(self, functions: Sequence[FunctionProgress], snapshot: Snapshot) -> None:
        if not self._live.is_started:
            self._live.start()
        shown = [_printable(text, self._console.encoding) for one in functions for text in lines(one)]
        self._live.update(self._text("\n".join([*shown, tasks(snapshot)]), no_wrap=True, overflow="crop"), refresh=True)

    def _give_up(self) -> None:
        self._live.stop()


class NotebookDisplay(Display):
    """A bar and the line of each function below the cell, in their place for as long as the run goes on."""

    interval = UPDATED

    def __init__(self) -> None:
        super().__init__()
        display: Any = importlib.import_module("IPython.display").display  # it is there, or there would be no notebook
        # Shown at once: later calls may come from a thread, which belongs to no cell.
        self._handle = display({"text/plain": "", "text/html": ""}, raw=True, display_id=True)

    def _draw(self, functions: Sequence[FunctionProgress], snapshot: Snapshot) -> None:
        page, shown = "", list[str]()
        for one in functions:
            share = "" if one.share is None else f' value="{one.share:.3f}"'
            first, *waits = [_printable(text, "utf-8") for text in lines(one)]
            page += f"<div><progress{share}></progress> {html.escape(first)}</div>"
            page += "".join(f"<div>{html.escape(text)}</div>" for text in waits)
            shown += [first, *waits]
        page = f'<div style="font-variant-numeric: tabular-nums">{page}<div>{tasks(snapshot)}</div></div>'
        self._handle.update({"text/plain": "\n".join([*shown, tasks(snapshot)]), "text/html": page}, raw=True)


class LogDisplay(Display):
    """A line about each function now and then, and one at the end."""

    interval = LOGGED

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._shown = 0.0

    def _draw(self, functions: Sequence[FunctionProgress], snapshot: Snapshot) -> None:
        shown = [
            text
            for one in functions
            for text in (f"asyncudf: {line(one)} ({tasks(snapshot)})", *(f"asyncudf: {wait}" for wait in one.waits))
        ]
        self._stream.write("".join(f"{_printable(text, self._encoding)}\n" for text in shown))
        self._stream.flush()


def _printable(text: str, encoding: str) -> str:
    """The text without what would move the cursor, or cannot be written."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text.encode(encoding, "replace").decode(encoding)


def _is_terminal(stream: TextIO | None) -> bool:
    with contextlib.suppress(Exception):
        return stream is not None and stream.isatty()
    return False
