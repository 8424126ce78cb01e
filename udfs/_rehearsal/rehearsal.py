"""What a rehearsal tells, as text and as a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from asyncudf.queues._public import public

from .._errors.figures import amount_, seconds, things
from .._errors.safe import one_line
from .arithmetic import Forecast, quantile, warn_of_one_forecast

QUANTILES = {"p50": 0.5, "p99": 0.99}


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a sample of real calls says of the whole job; `print` shows it as text, `report` writes it as a page.

    Attributes:
        function: the function's name.
        columns: the names of the columns that it reads.
        rows: of the DataFrame.
        sample: calls that were made.
        sample_seconds: that they took, with the counting of the rows.
        sample_spent: what they did cost, by unit.
        latencies: of their attempts, in seconds, sorted.
        as_is: the job with the options as they are.
        notes: what the sample did not show, and what ends the job before all rows have results.
    """

    function: str
    columns: tuple[str, ...]
    rows: int
    sample: int
    sample_seconds: float
    sample_spent: Mapping[str, float]
    latencies: tuple[float, ...]
    as_is: Forecast
    notes: tuple[str, ...]

    @property
    def proposals(self) -> tuple[Forecast, ...]:
        """Always empty, and deprecated: to compare settings, call `rehearse` with each."""
        warn_of_one_forecast("Rehearsal.proposals")
        return ()

    @property
    def _made(self) -> str:
        """What the sample was."""
        spent = "".join(f", {amount_(cost)} {one_line(unit)}" for unit, cost in self.sample_spent.items())
        calls = f"{things(self.sample, 'call')} made of {things(self.rows, 'row')}"
        return f"{calls} ({seconds(self.sample_seconds)}{spent})"

    @property
    def _a_call(self) -> str:
        """How long an attempt takes."""
        found = {name: quantile(self.latencies, at) for name, at in QUANTILES.items() if self.latencies}
        return ", ".join(f"{one.shown(seconds)} {name}" for name, one in found.items())

    def __str__(self) -> str:
        name, columns = one_line(self.function), ", ".join(map(one_line, self.columns))
        lines = [f"{name}({columns}): {self._made}"]
        if self.latencies:
            lines.append(f"  a call: {self._a_call}")
        lines.append(f"  all {things(self.as_is.calls, 'call')}: {self.as_is}; {self.as_is.limited_by}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def report(self, path: str | Path) -> None:
        """Write a page about it to an HTML file, in place of one that is there.

        Raises:
            OptionError: Jinja2 is not installed, or the file cannot be written.
        """
        from .._observe.reports.run_report import rehearsal_report

        rehearsal_report(self, path)
