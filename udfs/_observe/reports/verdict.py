"""The verdict on a function: where its time went, why, and the one change that would help most."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ..._errors.figures import count, number, seconds, share, things
from ..._errors.safe import one_line
from ..time_account import State
from .function_figures import FunctionFigures, rounded_up, seconds_of

# From the top down: `verdict`, which finds the state that cost most; what may be the answer in any state; the causes of
# each state (`CAUSES`), each with its evidence, its sentence and its advice, of which the first with evidence is the
# answer; and their words. The evidence itself is in the properties of `FunctionFigures`.
#
# What is enough to say so; a part of the time, unless something else is named.
FEW_CALLS, SHORT_RUN = 50, 1.0  # calls, and seconds, that tell too little
LONG_STRETCH = 10  # times the longest call: few calls tell as much then
DOMINANT_SHARE = 0.6  # one state alone is the answer
NOT_LITTLE = 0.35  # no state took less, if one is to be the answer
NEARLY_AS_MUCH = 0.8  # of what cost most: is named too
SHARE_OF_RUN = 0.5  # of the run's time: the function's own is named beside it
MUCH_SHARE = 0.5  # of the calls' time, of a state, of a processor
MANY_SHARE = 0.2  # of the attempts, of the rows
MANY_TIMEOUTS = 0.3  # of the calls' time
SECOND_LIMIT_SHARE = 0.2  # a second limit, which holds when the first is gone
BLOCKED_SHARE = 0.15  # with calls in flight, whose latency the blocks become
REFUSED_SHARE = 0.05  # of the attempts; fewer may be those of one tenant, and a lower rate would cost more
LITTLE_SHARE = 0.1  # another change is looked for
SOME_SHARE = 0.01
FEW_SLOTS = 8  # a service may take no more, and the user may know
NO_WAIT = 1e-3  # seconds; what takes less hardly waits for a service
SLOW = 5  # times as long as half of the calls
ROOM = 10  # times as many rows as slots in a queue that hardly any slow call fills
MOST_ROWS = 1_000_000  # in a queue that a user would want
FEW_HITS = 0.05  # of the rows that a store is asked for
ON_DISK = ("ResultStore.disk", "ResultStore.executor")
LONG_SILENCE = 10  # times as long as the longest call
CLEARLY_MORE = 1.5  # times as long

Sureness = Literal["sure", "likely", "not clear"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What limits a function.

    Attributes:
        state: of the account of time the one that cost most, by its key in `time`; None if nothing ran.
        share: of the tasks' time that went to it.
        sureness: how far the figures show the cause.
        text: both, and the one change, in a line.
    """

    state: str | None
    share: float
    sureness: Sureness
    text: str

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dataclasses.asdict(self)


class Cause(NamedTuple):
    """A cause and its remedy.

    Attributes:
        seen: what was seen, and what it means.
        change: what to change, and what that saves.
        gain: the part of the time that it saves; 0 where the run does not show it.
        is_sure: whether a run that follows the advice bears it out, whatever the service does.
    """

    seen: str
    change: str
    gain: float = 0.0
    is_sure: bool = True


def verdict(function: Mapping[str, Any], run_seconds: float = 0.0) -> Verdict:
    """The verdict on one function of `run.metrics`.

    The figures alone show what a change would save, under the condition that they cannot show:

    - "about": with twice the slots, where calls took as long at all times, `time * (1 - busy / 2)`; with half as many
      partitions half of the time in which tasks start and end; without failures the time of attempts in vain, and of
      the back-off that nothing else filled.
    - "at most": all of a state's time. Where calls become shorter, their part of the time of full slots, and all of the
      time that waited for the longest call.
    - Never more than would leave the calls all slots busy all the time: `calls in flight / slots`.
    - Tasks of equal length: what the longest takes beyond the mean, of the time from the first to the last.

    No number is given where the run does not show it: how many calls a service takes, and what blocked code would save.

    Args:
        function: of the `functions`.
        run_seconds: of the whole run. If the function's tasks were a small part of it, the text says so.
    """
    f = FunctionFigures(function)
    name, cost = (f.top.name.lower(), f.share(f.top)) if f.seconds else (None, 0.0)
    end, failed = _end_of_job(f), _failed_attempts(f)
    if end is not None:
        return Verdict(name, cost, "sure", f"{end.seen}; {end.change}")
    if not f.seconds and not f.count("rows"):
        if failed is None:
            text = "nothing ran: no task had a row for it, or none has reported anything yet"
            return Verdict(None, 0.0, "not clear", text)
        return Verdict(None, 0.0, "sure", f"nothing was completed: {failed.seen}; {failed.change}")
    if unpaid := f.count("unpaid"):  # with on_spent="null" or "dead_letter" it ends no job
        seen = f"a budget is spent: {count(unpaid)} of {things(f.count('rows'), 'row')} were not called"
        return Verdict(name, cost, "sure", f"{seen}; a larger one goes further")
    is_short = f.seconds < SHORT_RUN
    # Tasks of a few slow calls each tell enough: these would be made at once if they were rows of one task.
    has_few = f.top is State.WINDING_DOWN and cost >= DOMINANT_SHARE and not f.ran_together
    if is_short or (f.calls_ended < FEW_CALLS and f.seconds < LONG_STRETCH * f.latency("max") and not has_few):
        if failed is not None and failed.gain >= NOT_LITTLE:
            return Verdict(name, cost, "likely", f"{failed.seen}; {failed.change}")
        if f.came_from_store:
            text = f"all {things(f.count('rows'), 'row')} came from the store: no option of the calls changes that"
            return Verdict(name, cost, "sure", text)
        spent = f", {share(cost)} of it {f.top.value}" if name else ""
        text = f"too short to tell: {things(f.calls_ended, 'call')} in {seconds(f.seconds)}{spent}"
        return Verdict(name, cost, "not clear", text)
    found = _hits_alone(f) or _no_call_came_back(f) or _equal_rows(f) or CAUSES[f.top](f)
    text = f"{share(cost).removeprefix('>')} of the time "  # a line that begins with it would be a quotation
    if 0 < f.wall < SHARE_OF_RUN * run_seconds:
        text = f"its tasks ran for {seconds(f.wall)} of the run's {seconds(run_seconds)}: {share(cost)} of that time "
    others = [other for other in (failed, _skew(f)) if other is not None and other.gain > (found.gain or NOT_LITTLE)]
    if others:
        found = max(others, key=lambda other: other.gain)
        text += f"went to {f.top.value}, but "
    text += f"{found.seen}; {found.change}"
    second = f.ranking[1]
    is_close = f.share(second) >= NEARLY_AS_MUCH * cost
    is_sure = cost >= DOMINANT_SHARE and found.is_sure and not is_close
    sureness: Sureness = "not clear" if cost < NOT_LITTLE else "sure" if is_sure else "likely"
    if is_close:
        text += f"; {second.value} took {share(f.share(second))}"
    return Verdict(name, cost, sureness, text)


# A cause that its figures do not prove, and changes with what they save.


def _likely(seen: str, change: str, gain: float = 0.0) -> Cause:
    return Cause(seen, change, gain, is_sure=False)


def _at_most(gain: float) -> str:
    """What a change would save, where the number is a bound."""
    if gain > 0.99:
        return "would save nearly all of the time"
    return "would change little" if gain < 0.03 else f"would save at most {share(gain)} of the time"


def _about(gain: float) -> str:
    """What a change would save, where the number is an estimate."""
    return "would about halve the time" if 0.45 <= gain <= 0.55 else _at_most(gain).replace("at most", "about")


def _mostly(errors: Mapping[str, int]) -> str:
    """The commonest error, in brackets; nothing if there is none."""
    kind = max(errors, key=lambda kind: errors[kind]) if errors else None
    return "" if kind is None else f" (mostly {one_line(kind)})"


# Whatever the time went to: tasks that failed, and one that is longer than all others.


def _end_of_job(f: FunctionFigures) -> Cause | None:
    """What ended the job, where Spark has given up a partition: then nothing else matters."""
    if not f.count("given_up"):
        return None
    end = _end_of(f, "the job") or Cause("an error outside of the calls ended the job", "Spark's log tells why")
    kept = "; the store keeps the results of calls that have ended" if f.options.get("store") else ""
    return end._replace(change=f"{end.change}{kept}")


def _end_of(f: FunctionFigures, what: str) -> Cause | None:
    """The error that ended most of the tasks that failed; None if no function has raised one."""
    ends = f.in_vain.get("ended_by") or {}
    if not ends:
        return None
    cause, often = max(ends, key=lambda cause: ends[cause]), _mostly(f.in_vain.get("errors") or {})
    value = f.options.get(cause)
    ended = f"{cause}={f'{value:_}' if isinstance(value, (int, float)) else ''} ended {what}"
    match cause:
        case "max_failures":
            change = "first look why they fail (run.metrics has examples)"
            return Cause(f"{ended}: more rows failed than it allows{often}", change)
        case "max_calls":
            return Cause(f"{ended}: all these calls were made, and rows are left", "a higher one goes further")
        case "budget":
            return Cause(f"{ended}: it is spent, and rows are left", "a larger one goes further")
        case "quota":
            seen = f"a quota of the service that is used up ended {what}"
            return Cause(seen, "run it again when the account has a quota")
        case "breaker":
            seen = f"{ended}: the service gave no answer for its max_open{often}"
            return Cause(seen, "run it again when the service works")
        case "on_error":
            change = 'on_error="null" or "dead_letter" keeps a task going when a row fails'
            return Cause(f"a row that failed ended {what}{often}", change)
    return Cause(f"an error ended {what}: {one_line(cause)}", "Spark's log tells more")


def _failed_attempts(f: FunctionFigures) -> Cause | None:
    """The task attempts that failed: their calls were made in vain."""
    tasks = f.plain.get("tasks") or {}
    attempts, spent = (tasks.get("failed") or 0) + (tasks.get("lost") or 0), f.in_vain.get("seconds") or 0.0
    if not attempts or not spent:
        return None
    gain = spent / (spent + f.seconds)
    done = "made, and the store keeps their results" if f.options.get("store") else "made in vain"
    calls = f"{count(f.in_vain.get('calls') or 0)} calls were {done}"
    seen = f"{things(attempts, 'task attempt')} failed and took {share(gain)} of all time: {calls}"
    if end := _end_of(f, "them"):
        return Cause(seen, f"{end.seen}; {end.change}", gain)
    whose = "" if tasks.get("failed") else "their executors were lost: "
    return Cause(seen + _mostly(f.in_vain.get("errors") or {}), f"{whose}Spark's log tells why", gain)


def _skew(f: FunctionFigures) -> Cause | None:
    """One task that runs on alone: in tasks of equal length the run would save what it takes beyond the mean."""
    tasks = sorted(f.per_task, key=seconds_of)
    if len(tasks) < 3 or not f.wall:
        return None
    longest, usual = seconds_of(tasks[-1]), statistics.median(map(seconds_of, tasks))
    if longest < max(3 * usual, f.wall / 2):
        return None
    # As many at a time as ran when most did: with fewer cores than tasks they run in rounds.
    spans = [(task.get("began") or 0.0, (task.get("began") or 0.0) + seconds_of(task)) for task in tasks]
    at_once = max(sum(began <= moment < end for began, end in spans) for moment, _ in spans)
    rounds = math.ceil(f.tasks / max(1, at_once))
    gain = min(1.0, max(0.0, longest - rounds * f.seconds / max(1, f.tasks)) / f.wall)
    seen = f"one task of {count(f.tasks)} took {seconds(longest)}, half of them at most {seconds(usual)}"
    rows = tasks[-1].get("rows") or 0
    if rows >= 2 * statistics.median(task.get("rows") or 0 for task in tasks):
        seen += f", as it had {count(rows)} of {things(f.count('rows'), 'row')}"
        return Cause(seen, f"partitions of equal size {_at_most(gain)}", gain)
    seen += f", with no more rows than others (partition {tasks[-1].get('partition')})"
    return Cause(seen, f"if it were as fast as others that {_at_most(gain)}", gain)


# In several states: no calls, calls that do not come back, calls of equal rows.


def _hits_alone(f: FunctionFigures) -> Cause | None:
    """Rows that were all found in the store, if the task waited neither for it nor for what reads the results."""
    waited = f.top in (State.STORE, State.OUTPUT) and f.processor < MUCH_SHARE
    if not f.count("store_hits") or f.count("calls") or waited:
        return None
    change = "what is left is Spark's work, and reading the store"
    if f.processor >= MUCH_SHARE:
        change = f"reading them took a processor {share(min(1.0, f.processor))} of the time: {MORE_CORES}"
    return Cause(f"nothing was called, as {_found(f)} in the store: no option of the calls changes that", change)


def _no_call_came_back(f: FunctionFigures) -> Cause | None:
    """Calls that do not come back are in no latency, and the figures of the others do not show them."""
    if f.top not in (State.CALLS_BUSY, State.HEAD_OF_LINE, State.INPUT, State.WINDING_DOWN):
        return None  # the others wait for something else
    is_silent = f.silent >= MUCH_SHARE and f.silence >= LONG_SILENCE * f.latency("max") and f.calls_ended > 0
    if not is_silent and (f.calls_ended or not (f.flying or f.count("abandoned") or f.top is State.CALLS_BUSY)):
        return None
    seen = f"no call has returned for {seconds(f.silence or f.wall or f.seconds)}"
    if f.calls_ended:
        seen += f", where the longest took {seconds(f.latency('max'))}"
    if f.flying:
        seen += f", and {number(f.flying)} {'is' if f.flying == 1 else 'are'} in flight"
    return _likely(seen, f"{'a shorter ' if f.options.get('attempt_timeout') else ''}attempt_timeout= tells which")


def _equal_rows(f: FunctionFigures) -> Cause | None:
    """Rows that a store has no result for wait for the call of an equal row, and free slots have nothing to do."""
    waits = f.top in (State.HEAD_OF_LINE, State.INPUT, State.WINDING_DOWN)
    followed = f.count("following_seconds")
    if not waits or not f.time[f.top] or followed < MUCH_SHARE * f.time[f.top]:
        return None
    seen = "slots were free, but rows waited for the calls of equal rows"
    if f.count("repeated_seconds") >= MUCH_SHARE * followed:
        seen += f", which failed{_mostly(f.errors)} and were made again for each"
        return _likely(seen, "error_ttl= of the store gives equal rows the first one's error")
    if f.top is not State.INPUT and _is_even(f):  # else other rows, without equals, would be waited for as well
        return _likely(seen, "shorter calls would help")
    return None


# All slots have a call, or the event loop was blocked.


def _calls_busy(f: FunctionFigures) -> Cause:
    return (
        _computing(f)
        or _idle_slots(f)
        or _blocks(f)
        or _queue_of_few_calls(f)
        or _timeouts(f)
        or _failures(f)
        or _capacity_that_is_found(f)
        or _overtaken(f)
        or _saturated(f)
        or _slots_too_few(f)
    )


def _blocked_loop(f: FunctionFigures) -> Cause:
    if found := _computing(f):
        return found
    gain, spent = f.at_most(f.top), seconds(f.time[f.top])
    if f.peak <= 1:
        seen = f"({spent}) synchronous code blocked the event loop: no other call could go on"
        return Cause(seen, _no_blocks(f, _at_most(gain)), gain)
    return _blocked(f, f"synchronous code blocked the event loop ({spent} or more)")


def _computing(f: FunctionFigures) -> Cause | None:
    if f.processor < MUCH_SHARE:  # twice as many calls would need a whole processor
        return None
    computed = f"a task's process computed for {share(min(1.0, f.processor))} of its time"
    return Cause(f"{computed}: its processor is the limit, and more capacity changes nothing", MORE_CORES)


def _idle_slots(f: FunctionFigures) -> Cause | None:
    """Calls were begun one after another without a pause, and most slots were free all the same."""
    if not f.slots or (f.in_flight_when_busy >= f.slots / 2 and not f.peak <= 1 < f.slots):
        return None
    each = f"{seconds(f.latency('mean'))} each"
    if f.in_flight_when_busy < 1.5 and f.latency("mean") >= NO_WAIT:
        gain = f.at_most(f.top)
        seen = f"calls ran one after another, {each}: they block the event loop, and capacity changes nothing"
        return Cause(seen, _no_blocks(f, _at_most(gain)), gain)
    in_use = f"{number(f.in_flight_when_busy)} of {count(f.slots)} slots were in use"
    seen = f"calls were begun without a pause, {each}, and still only {in_use}"
    return _likely(f"{seen}: a task's one thread is the limit, and more capacity changes nothing", MORE_CORES)


def _blocks(f: FunctionFigures) -> Cause | None:
    blocked = f.share(State.BLOCKED_LOOP)
    kept = f"{_slots(f)}, but for {share(blocked)} synchronous code blocked the event loop"
    return _blocked(f, kept) if blocked >= BLOCKED_SHARE else None


def _blocked(f: FunctionFigures, seen: str) -> Cause:
    """Not sure: a machine with more to do than cores looks the same."""
    return _likely(f"{seen}: calls waited for it, and capacity changes nothing", _no_blocks(f, "lets them go on"))


def _failures(f: FunctionFigures) -> Cause | None:
    retried, failed = f.part("retries", of="attempts"), f.part("failures", of="rows")
    if f.part("throttled", of="attempts") >= MANY_SHARE:
        return _likely(f"{_slots(f)}, but {_refused(f)}", _lower_limit(f))
    if retried >= MANY_SHARE:  # failed attempts may take less time than others
        gain, retries = f.if_no_attempt_failed(), f"{share(retried)} of the attempts were retries{_mostly(f.errors)}"
        change = f"a service that does not fail {_about(gain)}; more capacity may make more calls fail"
        return _likely(f"{_slots(f)}, and {retries}: what fails is the limit", change, gain)
    if unkept := _unkept(f, _slots(f)):
        return unkept
    if failed >= MANY_SHARE:
        seen = f"{_slots(f)}, but {share(failed)} of the rows failed{_mostly(f.errors)}: their calls were made in vain"
        change = "first look why they fail (run.metrics has examples): more capacity may make more calls fail"
        return _likely(seen, change)
    return None


def _unkept(f: FunctionFigures, seen: str) -> Cause | None:
    """Most calls are for rows that fail for good, and the store has no `error_ttl`."""
    called = f.count("rows") - f.count("store_hits") - f.count("shared_flights")
    if called <= 0 or f.count("unkept_failures") < MUCH_SHARE * called:
        return None
    part = share(min(1.0, f.count("unkept_failures") / called))
    return _likely(
        f"{seen}, and {part} of the called rows failed for good{_mostly(f.errors)}: the store keeps no errors",
        "error_ttl= of the store spares their calls in the next run, and those of equal rows",
    )


def _capacity_that_is_found(f: FunctionFigures) -> Cause | None:
    """The task found out by itself how many calls it may have in flight."""
    if type(f.options.get("capacity")) is not str:
        return None
    flying = f"({number(f.in_flight)} per task on average, {count(f.peak)} at most)"
    found = f"{flying}, and they took {seconds(f.latency('mean'))}"
    if f.is_steady:
        seen = f"as many calls were in flight as capacity had grown to {found} from first to last"
        change = "a larger maximum would help if it was reached, else a larger minimum"
        return _likely(f"{seen}: the service was not the limit", change)
    seen = f"as many calls were in flight as the service was found to take {found}: the service is the limit"
    return _likely(seen, "a larger maximum of capacity helps only if it was reached")


def _overtaken(f: FunctionFigures) -> Cause | None:
    if not (at_once := f.were_overtaken):
        return None
    took = f"half of the calls took {seconds(f.latency('p50'))} and the mean is {seconds(f.latency('mean'))}"
    return _likely(
        f"{_slots(f)}, but {took}: the client's pool (in aiohttp TCPConnector(limit=...)), or the service, takes about "
        f"{_of_each_task(f, at_once)}, and newer calls pass older ones",
        "a larger pool would help" + _fewer(f, at_once),
    )


def _saturated(f: FunctionFigures) -> Cause | None:
    if not f.is_saturated:
        return None
    alone, half = seconds(f.alone), seconds(f.latency("p50"))
    seen = f"{_slots(f)}, but calls took {half} ({alone} while few were in flight): "
    if f.best_at_once:
        change = f'try capacity={f.best_at_once}, or capacity="auto", which finds how many it takes'
        return _likely(f"{seen}the service answers fewer calls the more it has", change)
    machine = f"this machine (processor time {share(min(1.0, f.processor))})"
    seen += f"the service, the client's pool, or {machine if f.processor >= LITTLE_SHARE else 'a blocked loop'} "
    if f.at_once:
        seen += f"takes at most about {_of_each_task(f, f.at_once)}, and more capacity changes nothing"
        return _likely(seen, "one that takes more would help" + _fewer(f, f.at_once))
    seen += "is slower with more calls, and more capacity changes little"
    return _likely(seen, "a lower capacity may take as long, with shorter calls")


def _slots_too_few(f: FunctionFigures) -> Cause:
    other = _second_limit(f)
    if f.share(other) >= SECOND_LIMIT_SHARE:
        gain, until = f.at_most(other), f"for {share(f.share(other))} {SECONDS[other]}"
        seen = f"{_slots(f)}, but {until}: more capacity alone would wait for that"
        return _likely(seen, f"{REMEDIES[other](f)} {_at_most(gain)}, and more with more capacity", gain)
    took = f"{_slots(f)} and calls took {seconds(f.latency('mean'))}"
    twice = "twice the capacity"
    if f.capacity is not None:  # a small queue grows with the slots: else it would soon be full behind the slower calls
        rows = f.queue_rows or 0
        is_small = 0 < rows < ROOM * 2 * f.capacity * f.batch_rows
        twice = f"capacity={2 * f.capacity:_}" + (f" with queue_size={2 * rows:_}" if is_small else "")
    if f.is_steady and (f.slots is None or f.slots > FEW_SLOTS):
        gain = f.share(f.top) / 2
        limit = "".join(f", {name} allows it" for name in _given_limits(f) if name != "max_calls")
        change = f"{twice} {_about(gain)} if the service takes so many at once{limit} and Spark keeps up"
        return _likely(f"{took} from first to last: capacity is the limit", change, gain)
    refused = " or more of them are refused" if f.count("throttled") else ""
    change = f"try {twice}: if calls then take longer{refused}, the service is the limit"
    return _likely(f"{took}: the service or capacity is the limit", change)


# Slots were free: slow calls, and the rows behind them.


def _head_of_line(f: FunctionFigures) -> Cause:
    gain = f.at_most(f.top)
    is_slow, is_waiting = gain < LITTLE_SHARE, f.waited >= MUCH_SHARE and not _is_full_of_bytes(f)
    if found := _queue_of_few_calls(f):
        return found
    seen, is_clear = _full(f), is_waiting or not _is_even(f)
    if not is_slow and (better := _better_queue(f)):
        return Cause(seen, f"queue_size={better:_} {_at_most(gain)}", gain, is_clear)
    if is_waiting and (found := _shorter_waits(f, seen, f.if_calls_waited_less(f.top), is_sure=True)):
        return found
    if is_slow:
        return _shorter_calls(f, seen)
    other = "unordered_wait, if the order of results does not matter,"
    if f.options.get("output_mode") == "unordered":
        other = f"fewer watermarks, or {'a shorter' if f.options.get('timeout') else 'a'} timeout,"
    return Cause(seen, f"{other} {_at_most(gain)}", gain, is_clear)


def _winding_down(f: FunctionFigures) -> Cause:
    opens_long = f.opening >= max(SOME_SHARE, f.share(f.top) / 2)
    half = f.latency("p50")
    is_slow = not _is_even(f) and half > 0 and not opens_long and f.waiting_beyond(half) >= MUCH_SHARE * f.share(f.top)
    if is_slow and (found := _timeouts(f)):
        return found
    if f.waited >= MUCH_SHARE and not opens_long:
        seen = f"tasks waited for the last of the rows that {_in_back_off(f)}"
        if found := _shorter_waits(f, seen, f.if_calls_waited_less(f.top) * f.waited, is_sure=False):
            return found
    if is_slow:
        return _shorter_calls(f, _last_calls(f))
    seen = "fewer rows were left than slots: tasks are short for their calls"
    if opens_long:
        seen = f"resources were opened and closed, {seconds(f.opening * f.seconds / max(1, f.tasks))} in a task"
    elif f.slots is not None and 0 < f.rows_per_task < f.slots * f.batch_rows:
        rows = "1 row" if f.rows_per_task == 1 else f"{number(f.rows_per_task)} rows"
        seen = f"free slots had nothing to start: a task had {rows} for {count(f.slots)} slots"
    if not f.ran_together:  # each task starts and ends once
        gain = (f.opening if opens_long else f.share(f.top)) / 2
        return Cause(seen, f"half as many partitions {_about(gain)}", gain)
    if opens_long:
        return Cause(seen, f"resources that open faster {_at_most(f.opening)}", f.opening)
    if f.tasks <= 1:
        return Cause(seen, "there is only one task: only faster calls would end it earlier")
    change = "fewer of them would free cores, but not end earlier; faster calls would"
    return Cause(seen, f"all tasks ran at the same time: {change}")


def _queue_of_few_calls(f: FunctionFigures) -> Cause | None:
    if not f.slots or not f.capacity or f.slots >= f.capacity or not _is_even(f):
        return None
    gain = f.share(f.top) * (1 - f.slots / f.capacity)
    filled = f"{things(f.slots, 'call')} filled the queue of {count(f.queue_rows)} rows"
    queue = f"queue_size={f.capacity * f.batch_rows:_} {_about(gain)} if calls take no longer then and Spark keeps up"
    return _likely(f"{filled}, with {count(f.capacity)} slots for calls", queue, gain)


def _timeouts(f: FunctionFigures) -> Cause | None:
    if f.time_limit is None or f.timed_out < MANY_TIMEOUTS:
        return None
    name, limit = f.time_limit
    seen = f"{_slots(f)}, {share(f.timed_out)} of that with calls that ran into {name}={limit:g}"
    if f.top is State.CALLS_BUSY and f.is_saturated:
        seen += "; only the first calls were quick: the service has too many at once, or it answers no more"
        return _likely(seen, "try a lower capacity: if calls then end in time, the service takes fewer")
    if f.top is not State.CALLS_BUSY:
        seen = _last_calls(f)
    change, gain = "a service that answers in time", f.if_no_call_took_longer(f.shorter_limit)
    if f.shorter_limit:
        change = f"{name}={f.shorter_limit:g}, twice what 99% of the others took,"
    return Cause(seen, f"{change} {_at_most(gain)}", gain)


def _shorter_calls(f: FunctionFigures, seen: str) -> Cause:
    longest, enough = f.latency("max"), rounded_up(3 * f.latency("p99"))
    if enough < min(longest / 2, f.options.get("attempt_timeout") or longest):
        gain, again = f.if_no_call_took_longer(enough), "" if f.options.get("retry") else " with retry="
        change = f"attempt_timeout={enough:g}{again} {_at_most(gain)}, if a second attempt is not as slow"
        return _likely(seen, change, gain)
    gain = f.if_no_call_took_longer(f.latency("p50"))
    return _likely(seen, f"calls that all take as long as half of them {_at_most(gain)}", gain)


def _shorter_waits(f: FunctionFigures, seen: str, gain: float, *, is_sure: bool) -> Cause | None:
    """Rows in back-off were waited for."""
    if _was_refused(f):
        return _likely(seen, _lower_limit(f))
    if f.options.get("retry"):
        return Cause(seen, f"shorter delays of retry= {_at_most(gain)}", gain, is_sure)
    return None


def _better_queue(f: FunctionFigures) -> int:
    """Rows of a queue that does not fill up during the longest call.

    0 if that is not at least twice as many as now, as a little more is no answer; and if memory is the bound.
    """
    # A row in back-off has a place in the queue, and no slot.
    half = min(f.latency("p50"), f.latency("mean") * (1 - f.waited))
    if f.slots is None or f.queue_rows is None or not half or _is_full_of_bytes(f):
        return 0
    ratio = min(f.latency("max") / half, MOST_ROWS)
    better = min(math.ceil(rounded_up(f.slots * f.batch_rows * ratio)), MOST_ROWS)
    return better if better >= 2 * f.queue_rows else 0


# Whatever else rows wait for.


def _input(f: FunctionFigures) -> Cause:
    before = _neighbor(f, "previous", "the query before the function")
    return _remedy(f, f"slots were free and no rows came: {before} is the limit, and more capacity changes nothing")


def _output(f: FunctionFigures) -> Cause:
    behind = _neighbor(f, "next", "the query after the function")
    return _remedy(f, f"results waited to be read: {behind} is the limit, and more capacity here changes nothing")


def _limit(f: FunctionFigures) -> Cause:
    given, has_several = _given_limits(f), len(f.limits) > 1 and bool(f.limit)
    if f.count("refused_seconds") >= MUCH_SHARE * f.time[f.top] or (f.count("throttled") and not given):
        return _likely(f"calls were held back because {_refused(f)}", _lower_limit(f))
    if f.part("throttled", of="attempts") >= REFUSED_SHARE:
        allowed = _shown_limit(f, f.limit) if has_several else " and ".join(f"{name}=" for name in given)
        return _likely(f"calls waited for {allowed}, and still {_refused(f)}", _lower_limit(f))
    if unkept := _unkept(f, "calls waited for what you allow"):
        return unkept
    if has_several:
        return _one_of_several_limits(f)
    words = {"job_capacity": f"a share of job_capacity={f.options.get('job_capacity')}", "max_calls": "max_calls"}
    waited = " or ".join(words.get(name, "a permit") for name in given)
    seen = f"calls waited for {waited}: what you allow is the limit, and capacity changes nothing"
    if refused := f.count("throttled"):
        seen += f"; {things(refused, 'call')} of {count(f.count('attempts'))} were refused, and made again"
    return _remedy(f, seen)._replace(is_sure=False)  # rows that wait hide how fast they came


def _one_of_several_limits(f: FunctionFigures) -> Cause:
    first, second, *others = sorted(f.limits, key=lambda limit: -f.limits[limit])
    parts = {limit: share(f.limits[limit] / sum(f.limits.values())) for limit in f.limits}
    seen = f"calls waited for what you allow, {parts[first]} of that for {_shown_limit(f, first)}"
    allowed = "if the service allows it and Spark keeps up,"
    if f.limits[first] < CLEARLY_MORE * f.limits[second]:
        seen += f" and {parts[second]} for {_shown_limit(f, second)}: these are the limit, and capacity changes nothing"
        return _likely(seen, f"higher ones, {allowed} would help")
    seen += ": this is the limit, and capacity changes nothing"
    then = "another of them" if others else _shown_limit(f, second)
    return _likely(seen, f"a higher one, {allowed} helps until {then} is the limit")


def _breaker(f: FunctionFigures) -> Cause:
    failed = f"the service failed too often{_mostly(f.errors)}"
    return _remedy(f, f"the circuit breaker was open: {failed}, and no option fixes that")


def _store(f: FunctionFigures) -> Cause:
    return _remedy(f, f"rows waited for stored results: the store is the limit ({_found(f)} there)")


def _remedy(f: FunctionFigures, seen: str) -> Cause:
    gain, full = f.at_most(f.top), "" if f.was_full else f" if the service takes {things(f.slots, 'call')} at once"
    others = sum(f.share(state) for state in State if state not in (f.top, State.CALLS_BUSY))
    change = f"{REMEDIES[f.top](f)} {_at_most(gain)}{full if gain >= LITTLE_SHARE else ''}"
    return Cause(seen, change, gain, is_sure=f.was_full and others < SECOND_LIMIT_SHARE)


# What several causes ask, and their words.


def _is_even(f: FunctionFigures) -> bool:
    return f.latency("max") < SLOW * f.latency("p50")


def _is_full_of_bytes(f: FunctionFigures) -> bool:
    limit = f.options.get("max_buffered_bytes")
    is_near = type(limit) is int and f.count("bytes_peak") >= 0.9 * limit
    return is_near and f.queued_peak < 0.9 * (f.queue_rows or math.inf)


def _was_refused(f: FunctionFigures) -> bool:
    """Whether most rows in back-off wait as long as the service has asked."""
    return f.part("throttled", of="retries") >= MUCH_SHARE


def _second_limit(f: FunctionFigures) -> State:
    """The state that limits the calls once the first limit is gone."""
    return max((state for state in SECONDS if state is not f.top), key=lambda state: f.time[state])


def _slots(f: FunctionFigures) -> str:
    if f.slots == 1:
        return "the only slot of a task was busy"
    return f"all {'' if f.slots is None else count(f.slots) + ' '}slots of a task were busy"


def _full(f: FunctionFigures) -> str:
    head = f"a slow row: half of the calls took {seconds(f.latency('p50'))}, the longest {seconds(f.latency('max'))}"
    if _is_full_of_bytes(f):
        head = f"a slow row: the rows that wait take max_buffered_bytes={f.options['max_buffered_bytes']:_}"
    elif f.waited >= MUCH_SHARE:
        head = f"rows that {_in_back_off(f)}"
    return f"slots were free, but the queue was full behind {head}"


def _last_calls(f: FunctionFigures) -> str:
    took = f"half of all took {seconds(f.latency('p50'))}, the longest {seconds(f.latency('max'))}"
    return f"tasks waited for their last calls: {took}"


def _in_back_off(f: FunctionFigures) -> str:
    why = "the service had refused for a while" if _was_refused(f) else "waited to be tried again"
    return f"{why}{_mostly(f.errors)}"


def _refused(f: FunctionFigures) -> str:
    refused = things(f.count("throttled"), "call")
    return f"the service refused {refused}: it allows fewer than were made, and capacity changes nothing"


def _of_each_task(f: FunctionFigures, calls: int) -> str:
    return f"{calls} at once" + ("" if f.at_a_time == 1 else f" from each of {f.at_a_time} tasks")


def _fewer(f: FunctionFigures, at_once: int) -> str:
    enough = 2 * at_once  # with as many calls in flight the service is still busy, though the estimate be low
    return f"; capacity={enough} takes as long, with shorter calls" if enough < (f.slots or 0) else ""


def _neighbor(f: FunctionFigures, which: str, otherwise: str) -> str:
    return f"Spark, or the {which} function," if f.plain.get("entry_point") == "operator" else otherwise


def _lookups(f: FunctionFigures) -> float:
    return f.count("store_hits") + f.count("store_misses")


def _found(f: FunctionFigures) -> str:
    return f"{count(f.count('store_hits'))} of {things(_lookups(f), 'row')} were found"


def _given_limits(f: FunctionFigures) -> list[str]:
    return [name for name in ("rate_limit", "job_capacity", "max_calls") if f.options.get(name)]


def _shown_limit(f: FunctionFigures, limit: str) -> str:
    value = f.options.get(limit)  # of job_capacity
    return one_line(limit if value is None else f"{limit}={value:_}")


def _higher(f: FunctionFigures) -> str:
    """The limit to raise: of several the one that calls waited for."""
    return _shown_limit(f, f.limit) if len(f.limits) > 1 and f.limit else " or ".join(_given_limits(f)) or "limit"


def _lower_limit(f: FunctionFigures) -> str:
    """What keeps calls from being refused, as a change of what is given."""
    rate, at_once = f.options.get("rate_limit"), f.options.get("job_capacity")
    one = "a lower rate_limit" if rate else "a rate_limit just below what it allows"
    other = "a lower job_capacity" if at_once else "a job_capacity"
    return f"{one}, or {other} if it bounds calls at once, would avoid that"


def _better_store(f: FunctionFigures) -> str:
    if f.count("store_hits") < FEW_HITS * _lookups(f):
        return "to do without store=, if rows do not come again,"
    if str(f.options.get("store")).startswith(ON_DISK):
        return "a faster disk"
    return "a faster store, such as ResultStore.disk on a local disk,"


def _no_blocks(f: FunctionFigures, effect: str) -> str:
    if f.options.get("kind") == "def":  # the calls of a plain def hold the interpreter: it computes
        return MORE_CORES
    threads = "an asynchronous client, or a plain def (which runs in threads)"
    return f"if a service is waited for, {threads}, {effect}; for computing only more cores help"


MORE_CORES = "more partitions on more cores, or less computing, would help"
REMEDIES: Mapping[State, Callable[[FunctionFigures], str]] = {
    State.INPUT: lambda f: "more partitions on more cores, or less work before the calls,",
    State.OUTPUT: lambda f: "a faster reader (the next function, the write), or more partitions,",
    State.LIMIT: lambda f: f"a higher {_higher(f)}, if the service allows it and Spark keeps up,",
    State.BREAKER: lambda f: "a service that works",
    State.STORE: _better_store,
}
SECONDS = {
    State.INPUT: "no rows came",
    State.OUTPUT: "results waited to be read",
    State.LIMIT: "calls waited for a permit",
}
CAUSES: Mapping[State, Callable[[FunctionFigures], Cause]] = {
    State.CALLS_BUSY: _calls_busy,
    State.HEAD_OF_LINE: _head_of_line,
    State.INPUT: _input,
    State.OUTPUT: _output,
    State.LIMIT: _limit,
    State.BREAKER: _breaker,
    State.STORE: _store,
    State.BLOCKED_LOOP: _blocked_loop,
    State.WINDING_DOWN: _winding_down,
}
