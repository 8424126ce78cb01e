"""Progress is readable where there is a terminal, a notebook, or a log, and never ends a job."""

from __future__ import annotations

import io
import logging
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from asyncudf._observe.reports.displays import TerminalDisplay, progress_display
from asyncudf._observe.reports.progress import Snapshot


def figures(**others: Any) -> dict[str, Any]:
    """What `RunMetrics.to_plain` tells of a function in the middle of its run."""
    return {
        "function": "weather", "tasks": {"succeeded": 4, "stopped": 0, "running": 1, "failed": 0, "lost": 0},
        "began": 100.0, "ended": 162.0, "rows": 124_000, "retries": 1, "errors": {"ValueError": 12},
        "failed_attempts": {"rows": 0, "retries": 0, "errors": {}}, "latency": {"p50": 0.048, "p95": 1.25},
        "running": {"rows": 24_000, "in_flight": 40}, **others,
    }  # fmt: skip


def snapshot(*functions: dict[str, Any], seconds: float = 62.0, done: int = 4) -> Snapshot:
    return Snapshot(functions or [figures()], done, 8, seconds)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def write(self, text: str) -> int:
        return super().write(text.encode(self._encoding).decode(self._encoding))

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a terminal that can do everything, whatever the tests run in."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")


def lines_of(shown: Snapshot, *, width: int = 100, is_over: bool = False) -> list[str]:
    """What a terminal of that width shows."""
    console = Console(record=True, width=width, file=Terminal(), force_terminal=True)
    told: list[str] = []

    class Told(TerminalDisplay):
        def _give_up(self) -> None:  # rich draws the last picture once more when it stops
            told.extend(line.rstrip() for line in console.export_text().splitlines())
            super()._give_up()

    display = Told(console)
    if is_over:
        display.close(shown)
    else:
        display.show(shown)
        display._give_up()
    return told


class TestTerminal:
    def test_each_function_has_a_line_and_the_tasks_have_one(self) -> None:
        line = "weather: 62%, 124,000 of ~200,000 rows, 2,000 rows/s, 0:38 left, 40 calls in flight, 12 errors, 1 retry"
        assert lines_of(snapshot(), width=len(line)) == [line, "4 of 8 tasks, 1:02"]

    def test_in_the_end_it_tells_what_was_done(self) -> None:
        over = figures(tasks={"succeeded": 8, "stopped": 0, "running": 0, "failed": 1, "lost": 0})
        assert lines_of(snapshot(over, done=8), width=120, is_over=True) == [
            "weather: 124,000 rows, 2,000 rows/s, in 1:02, 12 errors, 1 retry, p50 48 ms, p95 1.2 s, 1 failed task",
            "8 of 8 tasks, 1:02",
        ]

    @pytest.mark.parametrize("width", [1, 10, 20, 40, 60, 80, 120])
    def test_no_line_is_broken_however_narrow_it_is(self, width: int) -> None:
        long = figures(function="a_function_with_a_very_long_name_that_nobody_shortened")
        told = lines_of(snapshot(long, figures()), width=width)
        assert len(told) == 3
        assert all(len(line) <= width for line in told)

    def test_names_cannot_move_the_cursor_or_use_markup(self) -> None:
        first, *_ = lines_of(snapshot(figures(function="\x1b[31m[bold]f")))
        assert first.startswith("?[31m[bold]f: ")

    def test_before_anything_is_known_it_pretends_nothing(self) -> None:
        none = {"rows": 0, "in_flight": 0}
        unknown = figures(rows=0, began=162.0, errors={}, retries=0, latency={"p50": None, "p95": None}, running=none)
        told = lines_of(Snapshot([unknown], 0, None, 62.0))
        line = "weather: 0 rows, ? rows/s, ? left, 0 calls in flight, 0 errors, 0 retries"
        assert told == [line, "0 tasks, 1:02"]

    def test_it_is_redrawn_ten_times_a_second_at_most_and_has_no_thread_of_its_own(self) -> None:
        """An error there could end nothing, and would be printed."""
        stream, before = Terminal(), threading.enumerate()
        display = progress_display(stream)
        for moment in range(1000):
            display.show(snapshot(seconds=60 + moment / 1000))
        assert stream.getvalue().count("of ~200,000") in range(9, 12)
        assert threading.enumerate() == before

    def test_what_the_program_prints_stands_above(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And is not overwritten by the next picture; what goes to a file does."""
        for stdout in (stream := Terminal(), file := io.StringIO()):
            monkeypatch.setattr(sys, "stdout", stdout)
            display = progress_display(stream)
            display.show(snapshot(seconds=60))
            sys.stdout.write("own words\n")
            display.show(snapshot(seconds=61))
            display.close(snapshot())
            assert sys.stdout is stdout
        before, after = stream.getvalue().split("own words\n")
        assert "weather" in before
        assert "weather" in after
        assert file.getvalue() == "own words\n"

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
    def test_a_terminal_without_unicode_gets_what_it_can_show(self, encoding: str) -> None:
        stream = Terminal(encoding)
        progress_display(stream).show(snapshot(figures(function="größe天")))
        assert "124,000 of ~200,000" in stream.getvalue()


class TestLog:
    LINE = "weather: 62%, 124,000 of ~200,000 rows, 2,000 rows/s, 0:38 left, 40 calls in flight, 12 errors, 1 retry, "

    def test_it_is_one_line_in_ten_seconds_and_one_at_the_end(self) -> None:
        stream = io.StringIO()
        display = progress_display(stream)
        for moment in range(250):
            display.show(snapshot(seconds=moment / 10))
        display.close(snapshot(seconds=25.0))
        told = stream.getvalue().splitlines()
        assert [line.rpartition("tasks, ")[2] for line in told] == ["0:10)", "0:20)", "0:25)"]

    @pytest.mark.parametrize("lack", ["no terminal", "a dumb one", "no rich"])
    def test_where_nothing_can_be_redrawn_it_is_lines_that_tell_everything(
        self, lack: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = io.StringIO() if lack == "no terminal" else Terminal()
        if lack == "a dumb one":
            monkeypatch.setenv("TERM", "dumb")
        elif lack == "no rich":
            monkeypatch.setitem(sys.modules, "rich.console", None)
        progress_display(stream).show(snapshot())
        assert stream.getvalue() == f"asyncudf: {self.LINE}p50 48 ms, p95 1.2 s (4 of 8 tasks, 1:02)\n"

    def test_without_unicode_names_are_shown_as_far_as_they_can_be(self) -> None:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        progress_display(stream).show(snapshot(figures(function="größe\n")))
        assert raw.getvalue().startswith(b"asyncudf: gr??e?: 62%")


class Handle:
    """A display of a notebook, which keeps what it shows."""

    def __init__(self, shown: dict[str, str]) -> None:
        self.shown = [shown]

    def update(self, shown: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(shown)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """The displays of a notebook."""
    handles: list[Handle] = []

    def display(shown: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        handles.append(Handle(shown))
        return handles[-1]

    python, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    vars(python)["get_ipython"] = lambda: types.SimpleNamespace(kernel=object())
    vars(shown)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return handles


class TestNotebook:
    def test_there_is_one_display_made_at_once_and_updated_in_its_place(self, notebook: list[Handle]) -> None:
        """A thread that made it later would belong to no cell."""
        display = progress_display()
        (handle,) = notebook
        for moment in range(20):
            display.show(snapshot(seconds=60 + moment / 10))
        display.close(snapshot())
        assert len(handle.shown) == 6  # empty, four in two seconds, the last
        assert handle.shown[-2]["text/plain"].startswith("weather: 62%, 124,000 of ~200,000 rows")
        assert '<progress value="0.620">' in handle.shown[-2]["text/html"]
        assert '<progress value="1.000">' in handle.shown[-1]["text/html"]

    def test_names_are_escaped(self, notebook: list[Handle]) -> None:
        """And what would turn the words about, or act unseen, is not shown."""
        progress_display().show(snapshot(figures(function="<script>&\x00\x1b\u202e")))
        page = notebook[0].shown[-1]["text/html"]
        assert "&lt;script&gt;&amp;???:" in page
        assert notebook[0].shown[-1]["text/plain"].startswith("<script>&???:")
        assert "<script>" not in page

    def test_a_stream_and_ipython_in_a_terminal_are_no_notebook(
        self, notebook: list[Handle], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        progress_display(sys.stdout).show(snapshot())
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
        progress_display().show(snapshot())
        assert not notebook
        assert [told.startswith("asyncudf: weather") for told in capsys.readouterr()] == [True, True]


class Failing(Terminal):
    """A terminal that goes away."""

    def __init__(self, after: int, error: type[BaseException]) -> None:
        super().__init__()
        self.left = after
        self.error = error
        self.attempts = 0

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            self.attempts += 1
            raise self.error("the terminal is gone")
        return super().write(text)


class TestNeverFails:
    @pytest.mark.parametrize("error", [BrokenPipeError, SystemExit])
    @pytest.mark.parametrize("after", [0, 1, 2, 5, 11])
    def test_a_terminal_that_goes_away_ends_the_display_and_nothing_else(
        self, after: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At whatever write it is gone, the program has its own stdout again, and goes on."""
        stream, stdout, replaced = Failing(after, error), Terminal(), list[object]()
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(stdout, "fileno", lambda: replaced.append("stdout"))  # rich puts /dev/null in its place
        display = progress_display(stream)
        for moment in range(20):
            display.show(snapshot(seconds=60.0 + moment))
        display.close(snapshot())
        assert sys.stdout is stdout
        assert not replaced
        assert stream.attempts in range(1, 6)

    @pytest.mark.parametrize("stream", [io.StringIO, Terminal])
    def test_a_stream_that_is_closed_or_none_and_a_run_of_nothing_are_no_errors(
        self, stream: Callable[[], io.StringIO], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stderr", None)
        before, meanwhile, stays = stream(), stream(), stream()
        before.close()
        for one in (before, meanwhile, stays, None):
            display = progress_display(one)
            display.show(Snapshot([], 0, None, 20.0) if one is stays else snapshot(seconds=60.0))
            meanwhile.close()
            display.show(Snapshot([], 0, None, 90.0) if one is stays else snapshot(seconds=90.0))
            display.close(Snapshot([], 0, None, 91.0) if one is stays else snapshot())

    def test_figures_that_make_no_sense_end_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """And nothing is said of it."""
        stream = io.StringIO()
        display = progress_display(stream)
        display.show(Snapshot([{"function": "f"}], 0, 0, 20.0))
        display.show(snapshot(seconds=40.0))
        display.close(snapshot())
        assert stream.getvalue() == ""
        assert not [record for record in caplog.records if record.levelno > logging.DEBUG]

    def test_an_interrupt_is_the_users(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            progress_display(Failing(0, KeyboardInterrupt)).show(snapshot())

    def test_the_end_is_what_is_shown_last(self) -> None:
        stream = io.StringIO()
        display = progress_display(stream)
        write, others = stream.write, list[threading.Thread]()

        def slow_write(text: str) -> int:
            if not others:
                others.append(threading.Thread(target=display.close, args=[snapshot(seconds=99.0)]))
                others[0].start()
                others[0].join(0.1)  # it has to wait
            return write(text)

        stream.write = slow_write  # type: ignore[method-assign]
        display.show(snapshot())
        others[0].join()
        display.show(snapshot(seconds=200.0))
        assert [line[-5:-1] for line in stream.getvalue().splitlines()] == ["1:02", "1:39"]
