"""`max_failures`: how many rows of a job may fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ..._errors.exceptions import FatalError, ResultError
from ..._errors.records import error_text
from ..._errors.safe import type_name
from ..coordinator.link import KEEP_QUERY, PACE_SCRIPT, REFRESH, REPORT_EVERY, PeriodicTask, TaskLink
from ..gate import CallingTask
from .option import EXAMPLES, FIRST_ROWS, ErrorBudget, Failures, named_types, shown_examples

EXAMPLE_CHARACTERS = 200  # characters of an example: each micro-batch of a stream leaves some on the server for a while


class FailureBudget:
    """Ends the task when too many rows have failed."""

    # The task counts the rows that are done; the budget looks at the counter when a row fails, and at the end.
    #
    # _added: rows that are in the tally already
    # tally: of the job; None: only this task counts

    def __init__(self, task: CallingTask, budget: ErrorBudget, *, redacted: bool) -> None:
        self.budget = budget
        self._redacted = redacted
        self._task = task
        self._own = Failures()
        self._added = 0
        self.tally: SharedFailures | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if errors:
            examples = [error_text(error, redacted=self._redacted) for error in errors[:EXAMPLES]]
            self._add(Counter(map(type_name, errors)), examples, rows)

    def finish(self) -> None:
        self._add({}, [], 0)

    def spent(self, failures: Failures) -> None:
        """These failures have spent the budget: end the task."""
        if self.error is None:
            self.error = FatalError(self.budget.message(self._task.name, failures))
            self.error.option = "max_failures"
            self._task.fail(self.error)

    def _add(self, types: dict[str, int], examples: list[str], rows_of_call: int) -> None:
        done = self._task.counters.rows_done + rows_of_call  # the counter does not have these yet
        rows, self._added = max(0, done - self._added), max(done, self._added)
        if self.tally is not None:
            self.tally.add(rows, types, examples)
            return
        self._own.add(rows, types, examples)
        if self.budget.is_spent(self._own):
            self.spent(self._own)


class OpenRow(Protocol):
    """A row that was under way."""

    is_done: bool


# What code raises that is wrong itself, or whose answers are not as it expects.
MISTAKES = (ResultError, TypeError, AttributeError, NameError, KeyError, IndexError, ImportError)


class FirstRows:
    """Ends a task whose first rows have all failed with a mistake of the function's own.

    For `on_error="null"` without `max_failures`: nobody sees such a mistake in a column of NULLs.

    Args:
        under_way: the rows that have been taken and are not done.
    """

    # A mistake is quick, and a good call may be slow: so the rows that are under way when enough have failed are waited
    # for.
    #
    # _failures: the rows of the task so far; None: one has not failed so, or the task has ended
    # _earlier: the rows that were under way when enough had failed, less some that are done since; None before

    def __init__(self, task: CallingTask, under_way: Callable[[], list[OpenRow]], *, redacted: bool) -> None:
        self._task, self._under_way, self._redacted = task, under_way, redacted
        self._failures: Failures | None = Failures()
        self._earlier: list[OpenRow] | None = None
        self.error: FatalError | None = None

    def note(self, errors: Sequence[BaseException], rows: int) -> None:
        """The rows of a call are done; those with these errors have failed."""
        if (failures := self._failures) is None or not errors:
            return
        if self._has_others(failures) or len(errors) < rows or not all(issubclass(type(e), MISTAKES) for e in errors):
            self._failures = None
            return
        examples = [error_text(error, redacted=self._redacted) for error in errors[:EXAMPLES]]
        failures.add(rows, Counter(map(type_name, errors)), examples)
        if failures.failed < FIRST_ROWS:
            return
        if self._earlier is None:
            self._earlier = self._under_way()
        while self._earlier and self._earlier[-1].is_done:
            self._earlier.pop()
        if not self._earlier:
            self._end(failures)

    def finish(self) -> None:
        """All rows are done: none is under way any more."""
        failures = self._failures
        if failures is not None and failures.failed >= FIRST_ROWS and not self._has_others(failures):
            self._end(failures)

    def _has_others(self, failures: Failures) -> bool:
        """Whether rows are done that have not failed so; those with NULL that were not called are none."""
        counters = self._task.counters
        return counters.rows_done - counters.totals.null_rows > failures.failed

    def _end(self, failures: Failures) -> None:
        self._failures = None
        self.error = FatalError(_always_wrong(self._task.name, failures))
        self.error.option = "max_failures"
        self._task.fail(self.error)


def _always_wrong(function: str, failures: Failures) -> str:
    told = (
        f"{function} failed for each of the first {failures.failed} rows of a task, with errors of its own: "
        f"{named_types(failures)}. All its results would be NULL, so the job ends: mend the function, or its declared "
        "type; max_failures=1.0 lets such rows be NULL"
    )
    return "\n".join([told, *shown_examples(failures)])


# Adds the failures of a task to those of the job. A task reports all that it has counted so far. So a report that is
# repeated, or made by another attempt at the same rows, counts once: only what exceeds the reports before is added.
#
# keys: a hash of counts, a list of examples, a hash of what each part of the rows has reported, the pace. Arguments:
# time, part, number of counts, name and count of each, examples.
# Answers how far the coordinator is behind, the counts, and the examples.
TALLY = (
    PACE_SCRIPT
    + f"""
local reported, ends = cjson.decode(redis.call('HGET', KEYS[3], ARGV[2]) or '{{}}'), 3 + 2 * tonumber(ARGV[3])
for i = 4, ends, 2 do
  local name, count = ARGV[i], tonumber(ARGV[i + 1])
  if count > (reported[name] or 0) then
    redis.call('HINCRBY', KEYS[1], name, count - (reported[name] or 0))
    reported[name] = count
  end
end
if next(reported) then redis.call('HSET', KEYS[3], ARGV[2], cjson.encode(reported)) end
for i = ends + 1, #ARGV do
  if redis.call('LLEN', KEYS[2]) < 3 then redis.call('RPUSH', KEYS[2], ARGV[i]) end
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], {KEEP_QUERY}) end
return {{behind(), redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}}
"""
)


class SharedFailures(PeriodicTask):
    """Adds the failed rows of this task to those of the job; of one event loop.

    Rows that Spark runs again, in another attempt of the task, count once: their `part` has the same name. `spent` is
    called with the counts of the job when the budget is spent.
    """

    # A report has all counts since the task began, so a report that is repeated because its answer was lost counts
    # once. Each answer has the counts of the job, so the task that reports last sees those of all.
    #
    # _own: counts since the task began, with the examples that were not reported
    # _reported: the rows that were
    # _refreshed: when the last report was made

    def __init__(
        self, link: TaskLink, name: str, part: str, budget: ErrorBudget, spent: Callable[[Failures], None]
    ) -> None:
        super().__init__(link, [link.coordinator.key(kind, name) for kind in ("failures", "examples", "parts")])
        self._part, self._budget, self._spent = part, budget, spent
        self._own, self._reported = Failures(), 0
        self._refreshed = self._clock()

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        longest = EXAMPLE_CHARACTERS - 1
        short = [one if len(one) <= longest else f"{one[:longest]}\N{HORIZONTAL ELLIPSIS}" for one in examples]
        self._own.add(rows, types, short)
        if types:
            self._poke()

    async def close(self) -> None:
        await super().close()
        if not self._has_failed:  # else the task has failed already, and there is no answer
            await self._exchange()

    async def _exchange(self) -> float:
        own, now = self._own, self._clock()
        if own.rows > self._reported or now >= self._refreshed + REFRESH:
            rows, examples = own.rows, [*own.examples]
            counts = {
                "rows": rows,
                "failed": own.failed,
                **{f"type:{name}": count for name, count in own.types.items()},
            }
            pairs = [part for pair in counts.items() for part in pair]
            answer = await self._ask(TALLY, self._part, len(counts), *pairs, *examples)
            self._reported, self._refreshed = rows, now
            del own.examples[: len(examples)]
            job = _failures(*answer)
            if self._budget.is_spent(job):
                self._spent(job)
        return REPORT_EVERY


def _failures(counts: list[str], examples: list[str]) -> Failures:
    found = {name: int(count) for name, count in zip(counts[::2], counts[1::2], strict=True)}
    rows, failed = found.pop("rows", 0), found.pop("failed", 0)
    return Failures(
        rows, failed, Counter({name.removeprefix("type:"): count for name, count in found.items()}), examples
    )
