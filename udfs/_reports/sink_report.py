"""What a sink has done, for people and for programs."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Mapping
from typing import Any

from .._errors.exceptions import AsyncUDFError
from .._text.figures import count, seconds, things
from .._text.safe import one_line

REASONS = 5  # that are named in a message
EXAMPLES = 3  # messages of failed rows in a message
MESSAGE = 200  # characters of each


class SinkError(AsyncUDFError):
    """Rows of a sink have failed, although the job itself ended well.

    Attributes:
        report: the `SinkReport`, which has the failed rows.
    """

    def __init__(self, message: str, report: SinkReport | None = None) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> Any:
        return SinkError, (str(self),)  # a DataFrame stays where its session is


@dataclasses.dataclass(frozen=True, repr=False)
class SinkReport:
    """What `async_sink`, or one micro-batch of `stream_sink`, has done.

    The counts are those of the task attempts that succeeded: what Spark runs again counts once. `written`, `failed`,
    `reused` and `skipped` are all rows.

    Attributes:
        function: the name of the function.
        written: rows that the function has written.
        failed: rows that failed for good; they are in `dead_letters`.
        reused: rows that were not sent: the store has them as acknowledged, or an equal row was sent.
        skipped: rows that were not sent because an argument is NULL (`on_null_input="null"`).
        calls: of the function.
        retried: attempts after the first of their call.
        reasons: how many rows failed for each reason: the type of the error and, if it has one, its HTTP status.
        examples: a message for each reason.
        seconds: that the job took.
        dead_letters: a DataFrame of the failed rows: their columns, and `error` (type, message, attempts, elapsed,
            status, function, partition). The driver has these rows: reading them calls nothing. To send them again,
            give them to `async_sink` as they are.
    """

    function: str
    written: int
    failed: int
    reused: int
    skipped: int
    calls: int
    retried: int
    reasons: Mapping[str, int]
    examples: Mapping[str, str] = dataclasses.field(compare=False)
    seconds: float = dataclasses.field(compare=False)
    dead_letters: Any = dataclasses.field(compare=False)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.written + self.failed + self.reused + self.skipped

    def raise_for_failures(self) -> SinkReport:
        """The report itself, if no row has failed.

        Raises:
            SinkError: rows have failed; the message has the commonest reasons.
        """
        if self.failed:
            raise SinkError(self._failures(), self)
        return self

    def _failures(self) -> str:
        most = sorted(self.reasons, key=lambda reason: -self.reasons[reason])
        named = [f"{one_line(reason)} ({count(self.reasons[reason])})" for reason in most[:REASONS]]
        if others := sum(self.reasons[reason] for reason in most[REASONS:]):
            named.append(f"others ({count(others)})")
        text = f"{count(self.failed)} of {things(self.rows, 'row')} of {self.function} failed: {', '.join(named)}"
        shown = [_shown(self.examples[reason]) for reason in most if reason in self.examples][:EXAMPLES]
        return "\n".join([text, *(f"  for example {message}" for message in shown)])

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "written", things(self.written, "row")
        if self.failed or not self.written:
            yield "failed", things(self.failed, "row")
        for reason in sorted(self.reasons, key=lambda reason: -self.reasons[reason]):
            example = self.examples.get(reason)
            shown = "" if example is None else f", for example {_shown(example)}"
            yield "", f"{count(self.reasons[reason])} x {one_line(reason)}{shown}"
        if self.reused:
            yield "reused", f"{things(self.reused, 'row')}, acknowledged before or equal to another one"
        if self.skipped:
            yield "skipped", f"{things(self.skipped, 'row')} with a NULL argument"
        again = f", and {things(self.retried, 'retry', 'retries')}" if self.retried else ""
        yield "calls", f"{count(self.calls)}{again}"
        yield "took", seconds(self.seconds)

    def __repr__(self) -> str:
        shown = ("written", "failed", "reused", "skipped", "calls", "retried")
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in shown)
        return f"<SinkReport of {self.function}: {counts}, reasons={dict(self.reasons)!r}>"

    def __str__(self) -> str:
        """In a few lines."""
        return "\n".join([f"sink {self.function}", *(f"  {title:<8} {text}" for title, text in self._lines())])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{title}</th><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for title, text in self._lines()
        )
        return f"<table><caption>sink {html.escape(self.function)}</caption>{rows}</table>"


def _shown(message: str) -> str:
    return " ".join(message.split())[:MESSAGE]
