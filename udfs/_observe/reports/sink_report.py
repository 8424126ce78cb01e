"""What a sink has done, for people and for programs."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Mapping
from typing import Any

from asyncudf.queues._public import public

from ..._errors.exceptions import AsyncUDFError
from ..._errors.figures import commonest, count, seconds, things
from ..._errors.safe import one_line
from ..function_metrics import SinkRows

REASONS = 5  # that are named in a message
EXAMPLES = 3  # messages of failed rows in a message
MESSAGE = 200  # characters of each


@public("asyncudf")
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


@public("asyncudf")
@dataclasses.dataclass(frozen=True, repr=False)
class SinkReport:
    """What `async_sink`, or one micro-batch of `stream_sink`, has done.

    The counts are those of the task attempts that succeeded: what Spark runs again counts once. `written`, `failed`,
    `reused` and `skipped` add up to `rows`, which is the number of input rows.

    Attributes:
        function: the name of the function.
        written: rows that the function has written.
        failed: rows that failed for good; they are in `dead_letters`.
        reused: rows that were not sent: the store has them as acknowledged, or an equal row was sent.
        skipped: rows that were not sent because an argument is NULL (`on_null_input="null"`).
        calls: of the function; a call that is made again is one, with several attempts.
        attempts: of these calls: what the service has received, which is `calls` where nothing was sent again.
        retried: rows that were in more than one attempt, because they had failed, were refused, or came too late; also
            those that have failed for good.
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
    attempts: int
    retried: int
    reasons: Mapping[str, int]
    examples: Mapping[str, str] = dataclasses.field(compare=False)
    seconds: float = dataclasses.field(compare=False)
    dead_letters: Any = dataclasses.field(compare=False)

    @property
    def rows(self) -> int:
        """All input rows."""
        return sum(self._by_end)

    @property
    def _by_end(self) -> SinkRows:
        return SinkRows(self.written, self.failed, self.reused, self.skipped)

    def raise_for_failures(self) -> SinkReport:
        """The report itself, if no row has failed.

        Raises:
            SinkError: rows have failed; the message has the commonest reasons.
        """
        if self.failed:
            raise SinkError(self._failures(), self)
        return self

    def _failures(self) -> str:
        named = [f"{one_line(reason)} ({count(times)})" for reason, times in commonest(self.reasons, REASONS)]
        text = f"{count(self.failed)} of {things(self.rows, 'row')} of {self.function} failed: {', '.join(named)}"
        most = [reason for reason, _ in commonest(self.reasons, len(self.reasons))]
        shown = [_shown(self.examples[reason]) for reason in most if reason in self.examples][:EXAMPLES]
        return "\n".join([text, *(f"  for example {message}" for message in shown)])

    def _lines(self) -> Iterator[tuple[str, str]]:
        title = "failed"
        for reason, times in commonest(self.reasons, len(self.reasons)):
            example = self.examples.get(reason)
            shown = "" if example is None else f", for example {_shown(example)}"
            yield title, f"{things(times, 'row')}: {one_line(reason)}{shown}"
            title = ""
        if self.retried:
            yield "retried", things(self.retried, "row")
        attempts = f" in {things(self.attempts, 'attempt')}" if self.attempts != self.calls else ""
        yield "sent", f"{things(self.calls, 'call')}{attempts}"
        yield "took", seconds(self.seconds)

    @property
    def _heading(self) -> str:
        return f"sink {self.function}, {self._by_end}"

    def __repr__(self) -> str:
        shown = ("rows", "written", "failed", "reused", "skipped", "calls", "attempts", "retried")
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in shown)
        return f"<SinkReport of {self.function}: {counts}, reasons={dict(self.reasons)!r}>"

    def __str__(self) -> str:
        """In a few lines."""
        return "\n".join([self._heading, *(f"  {title:<8} {text}" for title, text in self._lines())])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{title}</th><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for title, text in self._lines()
        )
        return f"<table><caption>{html.escape(self._heading)}</caption>{rows}</table>"


def _shown(message: str) -> str:
    return " ".join(message.split())[:MESSAGE]
