"""The lifecycle of the rows of an operator, from the first attempt of each to its results.

The order of wrapping, outermost first, with the code that does it:

    deadline(               Deadlines, _expire          covers all attempts and back-offs of a row
      retry(                Decisions, Backlog          a row in back-off holds no slot
        limits(             Gatekeeper, KeyLines        an attempt that may not begin is the next one, or set aside
        slot(               SlotPool                    one slot, one attempt
          attempt_timeout(    start, _attempt_expired
            function))))        Invoker.invoke
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from ..._errors.exceptions import AsyncTimeoutError, BudgetSpentError
from ..._errors.failure import Failure
from ..._errors.traces import forget_frames
from ..._functions.async_function import Results
from ..._functions.options import OnError, Options
from ..._functions.signature import FunctionSpec
from ..loop.event_loops import refused_thread
from .arguments import copied, with_own_arguments
from .attempt import Attempt
from .backlog import Backlog
from .costs import Costs, GroupBounds
from .counts import OperatorCounts
from .deadlines import CLOCK_ROUNDING, Deadlines
from .decisions import Decision, Decisions, Ending, RetryAt, Way
from .gatekeeper import Gatekeeper
from .invokers import Invoker
from .outcomes import ErrorPolicy, Outcome, ResultChecker, Validate, usual_error
from .row import Row, RowSharing, RowState, Trouble
from .slots import HostOperator, Slot, SlotPool

LONGEST_TURN = 0.01  # seconds
NO_ANSWER = Failure(AsyncTimeoutError("no answer"))  # reported to the gates for attempts that were given up


class RowLifecycle:
    """What becomes of the rows of an operator, from the first attempt of each to its results."""

    # A row is in one `RowState`. While it is CALLING it has an attempt, which is in a slot.
    #
    # An attempt ends once: `_end` takes it out of its slot, tells what it did cost and how it ended, and gives the rows
    # that are still its own to `_decide`. A row whose deadline comes leaves its attempt before; with the last of its
    # rows an attempt is cut.

    def __init__(
        self,
        operator: HostOperator,
        spec: FunctionSpec,
        options: Options,
        pool: SlotPool,
        gatekeeper: Gatekeeper,
        costs: Costs,
        bounds: GroupBounds,
        *,
        validate: Validate | None,
        may_edit: bool,
        partition: int,
        rng: random.Random,
    ) -> None:
        counters = operator.counters
        self.operator = operator
        self._options = options
        self.pool = pool
        self._costs = costs
        self._bounds = bounds
        self.gatekeeper = gatekeeper
        self._rng = rng
        self._loop = operator.loop
        self.clock = counters.clock
        self.latencies = counters.latencies
        self.validate = validate
        self._checker = ResultChecker(validate)
        self._policy = ErrorPolicy(options, spec.name, partition)
        self.decisions = Decisions(options)
        self.counts = OperatorCounts(counters, redacted=options.redacted)
        # What is called for a row, if the function takes one row and returns one result; else None.
        self.function: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self._invoker: Invoker
        self._sharing: RowSharing | None = None
        self.over = RowState.DONE  # the state of a row whose results are decided
        self.backlog = Backlog(operator, pool, gatekeeper, bounds, self._may_go_on, self.weight_of)
        self._ends_with: BaseException | None = None  # the task, which shows it
        self._was_broken = False  # when `evaluate_held` last looked at the breaker
        # Rows of which a ResultFuture has ended an attempt, with the slots of coroutines that run on.
        self._running_on: dict[Row, list[Slot]] = {}
        self.deadlines = Deadlines[Row](
            self._loop, self.clock, options.timeout, self._rows_with_deadlines, partial(self._due, self._expire)
        )
        self.attempt_deadlines = Deadlines[Attempt](
            self._loop,
            self.clock,
            options.attempt_timeout,
            lambda: [(attempt, self.limit_of(attempt)) for attempt in self._attempts()],
            partial(self._due, self._attempt_expired),
        )
        # Seconds of calls that return at once, after which a slot yields to the event loop. No longer than a row or an
        # attempt may take, or deadlines would be seen too late.
        self.longest_turn = min(LONGEST_TURN, options.timeout or math.inf, options.attempt_timeout or math.inf)
        # Whether the function, or a resource of it, may ask for its row, or limits that are learned for when its call
        # began.
        asking = any(getattr(factory, "asks", False) for factory in spec.resources.values())
        self.asks = spec.has_context or asking or gatekeeper.learner is not None
        # An attempt gets copies of arguments that it could edit, as another attempt may follow: lists and dicts, and
        # the dict that is the argument of each AsyncFunction.
        self._copies = may_edit or spec.takes_mapping

    def share(self, sharing: RowSharing) -> None:
        self._sharing, self.over = sharing, RowState.DECIDED

    def use(self, invoker: Invoker) -> None:
        self._invoker = invoker
        if invoker.direct is not None:
            self.function = with_own_arguments(invoker.direct) if self._copies else invoker.direct

    # Before an attempt.

    def _may_go_on(self, row: Row) -> bool:
        if self._is_late(row):
            self._expire(row)
        return row.state is RowState.READY

    def weight_of(self, row: Row) -> float | None:
        """The weight of a row in its group; None if `batch_weight` raised: then the row has failed."""
        if not self._bounds.weighs:
            return 0.0
        try:
            return self._bounds.weight_of(row.record[0])
        except BaseException as error:  # code of the user's
            self.not_called([row], error)
            return None

    def not_called(self, rows: Sequence[Row], error: BaseException) -> None:
        """The user's code that an attempt needs before it begins has raised: the rows of the attempt fail."""
        failure = Failure(error)
        self.counts.failure(failure)
        self.conclude(rows, [failure] * len(rows))

    def begin(self, slot: Slot, attempt: Attempt) -> bool:
        """Begin an attempt if the limits allow it now; if not, it stays the next ready attempt, or is set aside.

        If the costs of an attempt cannot be computed, its rows fail.
        """
        if self.gatekeeper.asks_nothing:
            attempt.began = self.clock()
            return True
        if attempt.costs is None:
            attempt.costs = self._costs.of_each
            if attempt.costs is None and not self._tell_costs(attempt):
                return False
        aside = self.backlog.aside
        if attempt.keys and aside.holds(attempt):
            return False
        try:
            answer = self.gatekeeper.try_begin(slot, attempt)
        except BudgetSpentError as error:
            self.conclude(attempt.rows, [Failure(error)] * len(attempt.rows))
            self.backlog.withdraw(attempt)
            return False
        except BaseException:
            self.backlog.put_back(attempt)
            raise
        if answer is True:
            if attempt.asks_for is not None:
                aside.leaves(attempt)
            return True
        if answer is False:
            self.backlog.put_back(attempt)
        else:
            aside.set_aside(attempt, answer)
        return False

    def _tell_costs(self, attempt: Attempt) -> bool:
        """Compute the keys and costs of an attempt; returns False if that raised: then its rows have failed."""
        try:
            attempt.keys = self._costs.keys_of(attempt.values)
            attempt.costs = self._costs.of(attempt.values)
        except BaseException as error:  # code of the user's
            self.not_called(attempt.rows, error)
        return attempt.costs is not None

    # It starts.

    def start(self, slot: Slot, attempt: Attempt) -> Awaitable[Any]:
        """An attempt that may begin starts in this slot; returns what the slot has to await."""
        now, rows = attempt.began, attempt.rows
        slot.attempt, attempt.slot = attempt, slot
        first, *others = rows
        is_first = not first.attempts and not (others and any(row.attempts for row in others))
        for row in rows:
            if row.trouble.parked is not None:
                self._give_back(row)
                self.counts.unpark(row)
            if row.started is None or not row.attempts:
                self._start_time(row, now)
            if not row.attempts:
                row.counts = is_first and row is first
            row.attempts += 1
            row.attempt = attempt
            row.move(RowState.CALLING)
        if not is_first:
            self.counts.starts_again(rows)
            attempt.number = max(row.attempts for row in rows)
        if self.asks:
            state = attempt.state = slot.begin_attempt(attempt.element, attempt.number)
            state.started, state.deadline, state.is_of_many = now, _earliest(rows), len(rows) > 1
            state.last_error = next((e for row in rows if (e := row.trouble.last_error) is not None), None)
        if self.attempt_deadlines.delay is not None:
            self.attempt_deadlines.start(now)
        if self.function is not None:
            return self.function(*rows[0].record[0])
        values = attempt.values
        return self._invoker.invoke(copied(values) if self._copies else values, partial(self._delivered, attempt))

    def follow(self, row: Row, now: float) -> None:
        """Start the deadline of a row that shares the call of another row: when that call begins, or the row comes."""
        row.started, row.deadline = now, self.deadlines.start(now)
        row.own_trouble().pauses = self.gatekeeper.health.paused_seconds()

    def _start_time(self, row: Row, now: float) -> None:
        """Start the time and the deadline of a row; the deadline of a row that has followed another runs already."""
        if row.started is not None:
            self._give_back(row)
        else:
            row.deadline = self.deadlines.start(now)
        row.started = now
        if self._sharing is not None:
            self._sharing.begins(row, now)

    # It ends.

    def coroutine_ended(
        self, slot: Slot, attempt: Attempt, results: Sequence[Results] | None, error: BaseException | None
    ) -> None:
        if slot.has_retired:
            return
        if slot.attempt is attempt:
            self._end(attempt, results, None if error is None else Failure(error))
            return
        for row in attempt.rows:  # a ResultFuture has ended the attempt before
            if slot in (slots := self._running_on.get(row, [])):
                slots.remove(slot)
                if not slots:
                    del self._running_on[row]
                    if row.is_decided:  # the deadline was for its coroutine
                        self.deadlines.stop(row)

    def _delivered(self, attempt: Attempt, results: Results | None, error: BaseException | None) -> None:
        """A ResultFuture was completed: its attempt is decided, though the coroutine may run on."""
        slot = attempt.slot
        if slot.attempt is attempt and not slot.has_retired:
            self._running_on.setdefault(attempt.rows[0], []).append(slot)
            failure = None if error is None else Failure(error)
            self._end(attempt, None if results is None else [results], failure)

    def _end(self, attempt: Attempt, results: Sequence[Results] | None, failure: Failure | None) -> None:
        """An attempt has ended, in time or not; `failure`: it has failed as a whole, else `results` has each row."""
        now = self.clock()
        attempt.slot.attempt = None
        self.attempt_deadlines.stop(attempt)
        if attempt.is_settled:
            seen = results if results is None else [self._invoker.seen_by_settle(one) for one in results]
            self.gatekeeper.spending.settle(attempt, seen, failure, is_cut=False)
        reported = failure
        if results is not None and self._bounds.is_many:
            usual = usual_error([one for one in results if isinstance(one, BaseException)], len(results))
            reported = None if usual is None else Failure(usual)
        if attempt.has_asked or reported is not None:
            self._report(attempt, reported, now)
        # The clock decides, not the timer: after a call has blocked the loop, a late result may come before its timer.
        if now - CLOCK_ROUNDING > self.limit_of(attempt):
            self._decide(attempt, None, self._limit_failure(attempt), now)
        else:
            self._decide(attempt, results, failure, now)

    def _cut(self, attempt: Attempt) -> None:
        """Abandon an attempt that still runs: its end is not waited for."""
        attempt.slot.attempt = None
        self.attempt_deadlines.stop(attempt)
        if attempt.is_settled:
            self.gatekeeper.spending.settle(attempt, None, NO_ANSWER, is_cut=True)
        self.pool.abandon(attempt.slot)
        self._report(attempt, NO_ANSWER, self.clock())

    def _report(self, attempt: Attempt, failure: Failure | None, now: float) -> None:
        self.gatekeeper.ended(attempt, failure, now)
        if attempt.keys:
            self.backlog.aside.ended(attempt)
        if self.gatekeeper.held_failures is not None:
            self.evaluate_held()

    # What becomes of its rows.

    def _decide(self, attempt: Attempt, results: Sequence[Results] | None, failure: Failure | None, now: float) -> None:
        """An attempt has ended: each of its rows is done, or goes on.

        `results`: those of each row, or its exception; `failure`: the attempt has failed as a whole.
        """
        rows, numbers = attempt.rows, list[int]()
        if len(rows) > 1 or not rows[0].counts:
            self.counts.ends_for_many(attempt, now)
        for number, row in enumerate(rows):
            if row.attempt is attempt:
                row.attempt = None
                if row.deadline is not None and now - CLOCK_ROUNDING > row.deadline:  # the loop was too busy to notice
                    self._expire(row)
                elif row.state is RowState.CALLING:
                    numbers.append(number)
        if not numbers:
            return
        if failure is not None:
            self.counts.failure(failure)
            self._decide_bad(attempt, numbers, [], [failure] * len(rows), now)
            return
        assert results is not None
        outcomes = self._checker.checked(results, () if attempt.state is None else attempt.state.side)
        good = [number for number in numbers if type(outcomes[number]) is not Failure]
        if good:
            done = [rows[number] for number in good]
            self._decide_good(done, [results[number] for number in good], [outcomes[number] for number in good], now)  # type: ignore[misc]
        if len(good) < len(numbers):
            bad = [number for number in numbers if type(outcomes[number]) is Failure]
            self.counts.failures([outcomes[number] for number in bad])  # type: ignore[misc]
            self._decide_bad(attempt, bad, results, outcomes, now)

    def _decide_good(
        self, rows: Sequence[Row], results: Sequence[Results], outcomes: Sequence[Results], now: float
    ) -> None:
        """These rows of an attempt have results: they are done, or called again as a predicate does not accept them."""
        decision: Decision = Ending.DONE
        if self.decisions.looks_at_results:
            seen, way = self._invoker.seen_by_retry(results), _way(rows)
            try:
                decision = self.decisions.of_result(
                    seen, way, now, self._rng.random(), is_kept=self._sharing is not None
                )
            except BaseException as own:  # the predicate failed
                self.conclude(rows, [Failure(own)] * len(rows))
                return
            if type(decision) is RetryAt:
                self.gatekeeper.health.unsatisfied(now)
                self._call_again(rows, decision, seen, now, as_one=True)
                return
        if decision is Ending.UNKEPT and self._sharing is not None:
            for row in rows:
                self._sharing.leaves(row)
        self._complete(rows, outcomes, outcomes, now)

    def _decide_bad(
        self,
        attempt: Attempt,
        numbers: Sequence[int],
        results: Sequence[Results],
        outcomes: Sequence[Any],
        now: float,
    ) -> None:
        """These rows of an attempt have failed: they are called again, alone or together, or have failed for good.

        Without `results` the attempt has failed as a whole, and all rows have one failure.
        """
        # Rows that have come the same way, and have failed together, are decided about once.
        is_whole = not results
        alike: dict[Any, list[Row]] = {}
        for number in numbers:
            row = attempt.rows[number]
            alike.setdefault((_way([row]), numbers[0] if is_whole else number), []).append(row)
        draw = self._rng.random()  # one for all: rows of equal delays come back together, and are called together
        may_split = is_whole and len(numbers) > 1 and not self.gatekeeper.health.is_broken
        later: dict[tuple[RetryAt, Any], list[Row]] = {}
        to_split: list[Row] = []
        for (way, number), rows in alike.items():
            failure: Failure = outcomes[number]
            if (code := failure.answer.quota) is not None:
                failure = Failure(self._policy.used_up(failure.error, code))
            seen = None if is_whole else self._invoker.seen_by_retry([results[number]])
            try:
                is_down = self.gatekeeper.held_failures is not None and self.gatekeeper.health.looks_down(failure)
                decision = self.decisions.of_failure(
                    failure, way, now, draw, seen=seen, may_split=may_split, is_down=is_down
                )
            except BaseException as own:  # a predicate of the retry strategy failed
                failure, decision = Failure(own), Ending.DONE
            if type(decision) is RetryAt:
                later.setdefault((decision, failure.error), []).extend(rows)
            elif decision is Ending.SPLIT:
                to_split += rows
            elif decision is Ending.HOLD:
                self._hold(rows, [failure] * len(rows), failure)
            else:
                self.conclude(rows, [failure] * len(rows))
        if later:
            self.operator.counters.totals.throttled += any(decision.is_refusal for decision, _ in later)
        for (decision, last), rows in later.items():
            # All rows of a call that has failed as a whole are called again as they were; others are gathered anew.
            self._call_again(rows, decision, last, now, as_one=1 < len(rows) == len(attempt.rows))
        if to_split:
            self._halve(to_split, outcomes[numbers[0]], now)

    def _call_again(self, rows: Sequence[Row], decision: RetryAt, last: Any, now: float, *, as_one: bool) -> None:
        """Another attempt of these rows follows; `last`: the error or result of the attempt before."""
        for row in rows:
            trouble = self._park(row, last, now)
            if decision.is_refusal:
                trouble.uncounted += 1
                if trouble.refused is None:
                    trouble.refused = now
            else:
                trouble.waited += decision.delay
                if self.gatekeeper.health.is_broken:
                    self._renew(row)
        if self.asks:
            self._forget_frames(last)
        self.backlog.back_off(rows, decision.delay, as_one=as_one)

    def _halve(self, rows: Sequence[Row], failure: Failure, now: float) -> None:
        """Call each half of these rows, whose call has failed as a whole; a single row is called alone."""
        middle = len(rows) // 2
        for half in filter(None, (rows[:middle], rows[middle:])):
            for row in half:
                self._park(row, failure.error, now)
            self.backlog.put(Attempt(half))
        self._forget_frames(failure.error)

    def _park(self, row: Row, last: Any, now: float) -> Trouble:
        """No attempt of a row runs now; `last`: the error or result of its last attempt, for the next one to ask."""
        trouble = row.own_trouble()
        trouble.parked, trouble.pauses = now, self.gatekeeper.health.paused_seconds()
        if self.asks:
            trouble.last_error = last
        return trouble

    def _forget_frames(self, last: Any) -> None:
        """Free what the frames of a noted error keep alive, once all rows with this error are decided."""
        if self.asks and last is not self._ends_with:
            forget_frames(last)

    def _give_back(self, row: Row) -> None:
        """Move the deadline of a row by the time that it has spent in pauses of all calls."""
        pauses, trouble = self.gatekeeper.health.paused_seconds(), row.own_trouble()
        spent, trouble.pauses = pauses - trouble.pauses, pauses
        if spent and row.deadline is not None:
            row.deadline += spent
            self.deadlines.move(row, row.deadline)

    # It is done.

    def conclude(self, rows: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
        """No attempt follows: errors become results as `on_error` says, row by row."""
        completed: list[Results] = []
        failed: list[BaseException] = []
        now = self.clock()
        for row, outcome in zip(rows, outcomes, strict=True):
            if type(outcome) is not Failure:
                completed.append(outcome)
                continue
            on_error = self._policy.of(outcome)
            if on_error is OnError.RAISE:
                self._ends_with = outcome.error
                self.counts.give_up(rows)
                self.counts.ends_task(outcome.error, None if outcome.is_no_rows_fault else "on_error")
                self.operator.fail(self._policy.task_error(outcome, row.attempts, [one.record[0] for one in rows]))
                return
            result = self._policy.result(outcome, on_error, row.attempts, row.elapsed(now))
            is_unpaid = type(outcome.error) is BudgetSpentError
            self.counts.failed(row, result, is_unpaid=is_unpaid)
            if not is_unpaid:
                failed.append(outcome.error)
            completed.append((result,))
        if self.gatekeeper.health.failures is not None:
            self.gatekeeper.health.failures.note(failed, len(rows))
        self._complete(rows, completed, outcomes, now)

    def _complete(
        self, rows: Sequence[Row], completed: Sequence[Results], outcomes: Sequence[Outcome], now: float
    ) -> None:
        self.counts.ended(rows, completed, now)
        over, sharing = self.over, self._sharing
        for row in rows:
            row.move(over)
            if row not in self._running_on:
                self.deadlines.stop(row)
        for row, results, outcome in zip(rows, completed, outcomes, strict=True):
            if sharing is None:
                row.complete(results)
            else:
                sharing.complete(row, results, outcome)
        self.operator.pump()

    # Its deadline comes, or the limit of its attempt.

    def _rows_with_deadlines(self) -> Iterator[tuple[Row, float]]:
        undecided = [row for row in self.operator.rows_under_way() if not row.is_decided]
        for row in (*undecided, *self._running_on):
            if row.deadline is not None:
                yield row, row.deadline

    def limit_of(self, attempt: Attempt) -> float:
        """When the limit of an attempt comes."""
        limit = self._options.attempt_timeout
        return math.inf if limit is None else attempt.began + limit

    def _due(self, end: Callable[[Any], None], one: Row | Attempt) -> None:
        try:
            end(one)
        except BaseException as error:  # a timer's exception would only be logged
            self.operator.fail(error)

    def _expire(self, row: Row) -> None:
        """The deadline of a row has come: it is done, whatever still runs for it."""
        is_at_work = row.state is RowState.CALLING
        if not (row.is_decided or is_at_work):
            self._give_back(row)
        if not (row.is_decided or row.deadline is None or self._is_late(row)):  # the deadline was moved
            self.deadlines.move(row, row.deadline)
            return
        for slot in self._running_on.pop(row, ()):  # their attempts have ended before
            self.pool.abandon(slot)
        attempt: Attempt | None = row.attempt
        is_first, is_last = row.counts, True
        if attempt is not None:
            is_first, is_last = not attempt.left, not attempt.leave(row)
            self.counts.leaves(attempt, row, is_last=is_last)
            if is_last:
                self._cut(attempt)
        if self.gatekeeper.health.is_broken and not (row.is_decided or is_at_work):
            self._renew(row)  # it is late because its service is dead
        elif not row.is_decided and row.state is not RowState.HELD:
            self._time_out(row, is_first=is_first, is_last=is_last)
        self.gatekeeper.reopen()  # it may have been the next, and the one behind it may cost less
        self.pool.wake()

    def _time_out(self, row: Row, *, is_first: bool, is_last: bool) -> None:
        """A row is late; it may be the first to leave its attempt, and the last: then the attempt has ended."""
        if self._sharing is not None:
            self._sharing.leaves(row)  # the answer of `on_timeout` is for this row alone
        late = self._late(f"no result within {self._options.timeout:g} s")
        answer = late if late.is_no_rows_fault else self._checker.late(self._invoker, row, late.error)
        failure = answer if type(answer) is Failure else late
        is_at_work = row.trouble.parked is None  # or the call that it follows
        own_failure = failure if failure is answer and is_at_work and is_last else None
        self.counts.timed_out(row, own_failure, is_first=is_first)
        # A row that waits for its turn says nothing about the service.
        if is_at_work and not failure.is_no_rows_fault and any(map(self.gatekeeper.health.looks_down, (failure, late))):
            self._hold([row], [answer], failure)
            return
        if row.state is RowState.ASIDE:
            self.backlog.take_out(row)
        self.conclude([row], [answer])

    def _attempt_expired(self, attempt: Attempt) -> None:
        """The limit of an attempt has come: this is an outcome like an exception, and may be retried."""
        self._cut(attempt)
        self._decide(attempt, None, self._limit_failure(attempt), self.clock())
        self.pool.wake()

    def _limit_failure(self, attempt: Attempt) -> Failure:
        self.operator.counters.totals.timeouts += 1
        limit = self._options.attempt_timeout
        return self._late(f"attempt {attempt.number} gave no result within {limit:g} s")

    def _late(self, text: str) -> Failure:
        error = AsyncTimeoutError(text)
        if (refusal := refused_thread(self._loop)) is not None:  # then it may not have run at all
            error.__cause__ = refusal
        return Failure(error)

    def _is_late(self, row: Row) -> bool:
        """Whether the deadline has come, though its timer may not have fired."""
        return row.deadline is not None and self.clock() + CLOCK_ROUNDING >= row.deadline

    # Its service may be dead.

    def _hold(self, rows: Sequence[Row], outcomes: Sequence[Outcome], failure: Failure) -> None:
        """Rows have failed, and are held until it is known whether their service is dead."""
        assert self.gatekeeper.held_failures is not None
        for row, outcome in zip(rows, outcomes, strict=True):
            self._park(row, None, self.clock())
            if row.state is RowState.READY or row.state is RowState.ASIDE:
                self.backlog.take_out(row)
            row.move(RowState.HELD)
            if row not in self._running_on:
                self.deadlines.stop(row)
            self.gatekeeper.held_failures.hold(row, outcome, failure)
        self._loop.call_soon(self.evaluate_held)

    def evaluate_held(self) -> None:
        """Decide about held rows: an attempt has ended, the breaker has opened or closed, or nothing more comes."""
        held = self.gatekeeper.held_failures
        if held is None:
            return
        for row, failure in held.excused():  # they are tried as if they had had no attempt
            self._renew(row)
            if self.asks:
                row.own_trouble().last_error = failure.error
                self._forget_frames(failure.error)
            self.backlog.again([row])
        self._fail_held(held.failed())
        if self.gatekeeper.health.is_broken is not self._was_broken:
            self._was_broken = self.gatekeeper.health.is_broken
            for row in self.backlog.rows:
                if row.started is not None:  # it has waited for the service to come back
                    self._renew(row)
        if self.pool.is_idle and not (self.backlog.is_waiting or self.operator.has_rows()):
            self._fail_held(held.failed(is_last=True))

    def _fail_held(self, failed: Iterable[tuple[Row, Outcome]]) -> None:
        for row, outcome in failed:
            self.conclude([row], [outcome])

    def _renew(self, row: Row) -> None:
        """Let all time of the row, and of the rows that share it, begin anew with its next attempt."""
        for one in (row, *(() if self._sharing is None else self._sharing.renewed(row))):
            self.deadlines.stop(one)
            self.counts.renewed(one)
            one.started = one.deadline = None
            trouble = one.own_trouble()
            trouble.uncounted, trouble.waited, trouble.refused = one.attempts, 0.0, None
            trouble.is_excused = trouble.is_excused or one.attempts > 0

    # Figures, and the end.

    def count_open(self) -> None:
        self.counts.count_open(self._open_rows(), self._attempts())

    def abandon(self) -> None:
        """The operator ends: give up its open calls. A call that catches its cancellation has no row any more."""
        now = self.clock()
        self.counts.give_up(self._open_rows())
        self.operator.counters.totals.open_seconds = 0.0
        for attempt in self._attempts():
            self.counts.ends_for_many(attempt, now)
            attempt.slot.attempt = None
            if attempt.is_settled:
                self.gatekeeper.spending.settle(attempt, None, NO_ANSWER, is_cut=True)

    def _attempts(self) -> list[Attempt]:
        return [slot.attempt for slot in self.pool.at_work if slot.attempt is not None]

    def _open_rows(self) -> list[Row]:
        """The rows that have had an attempt, or may have one, and are not over."""
        found = [row for attempt in self._attempts() for row in attempt.rows if row.attempt is attempt]
        waiting = [*self.backlog.rows, *(self.gatekeeper.held_failures or ())]
        return found + [row for row in waiting if not row.is_decided]

    def close(self) -> None:
        self.backlog.aside.close()
        self.deadlines.close()
        self.attempt_deadlines.close()


def _way(rows: Sequence[Row]) -> Way:
    """What these rows have gone through until the end of their joint attempt."""
    if len(rows) == 1:
        (row,) = rows
        trouble = row.trouble
        attempts = row.attempts - trouble.uncounted
        return Way(attempts, row.started or 0.0, trouble.waited, row.deadline, trouble.refused)
    ways = [_way([row]) for row in rows]
    return Way(
        max(way.attempts for way in ways),
        min(way.started for way in ways),
        max(way.waited for way in ways),
        _earliest(rows),
        None,
    )


def _earliest(rows: Sequence[Row]) -> float | None:
    return min((row.deadline for row in rows if row.deadline is not None), default=None)
