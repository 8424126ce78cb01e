"""What limits a function: a table of rules, from what was seen to what is to be changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._metrics.time_account import State
from .._text.figures import count, number, seconds, share, things
from .._text.safe import one_line
from .reading import Reading, rounded_up

__all__ = ("Finding", "failed_attempts", "finding", "skew")


MUCH = 0.5  # of the calls' time, of a state
MANY_TIMEOUTS = 0.3  # of the calls' time
MANY_RETRIES = 0.2  # of the attempts
COMPUTES = 0.5  # of the time: twice as many calls would need a whole processor
BLOCKS = 0.15  # of the time: with calls in flight, whose latency the blocks become
NO_WAIT = 1e-3  # seconds; what takes less hardly waits for a service
SLOW = 5  # times as long as half of the calls
LITTLE = 0.1  # of the time: another change is looked for
SOME = 0.01  # of the time
ROOM = 10  # times as many rows as slots in a queue that hardly any slow call fills
MOST_ROWS = 1_000_000  # in a queue that anybody would want
FEW_HITS = 0.05  # of the rows that a store is asked for
LONG_SILENCE = 10  # times as long as the longest call


class Finding(NamedTuple):
    """What the figures tell.

    Attributes:
        seen: what was seen, and what it means.
        change: the change, and what it would save.
        gain: which part of the time that is; 0 where the figures do not tell.
        is_sure: whether they leave no other cause.
    """

    seen: str
    change: str
    gain: float = 0.0
    is_sure: bool = True


class Rule(NamedTuple):
    """One cause.

    Attributes:
        states: of which one cost most.
        evidence: whether the figures show it.
        words: what was seen, with the names of `FACTS`.
        advice: what to change, and what that saves.
        gain: the part of the time that is saved, where the figures tell.
        is_sure: whether a run that follows the advice bears it out whatever the service does.
    """

    states: tuple[State, ...]
    evidence: Callable[[Reading], bool]
    words: str
    advice: str
    gain: Callable[[Reading], float] = lambda reading: 0.0
    is_sure: Callable[[Reading], bool] = lambda reading: True


def finding(reading: Reading) -> Finding:
    """Of the first rule of the state that cost most whose evidence is there."""
    state = reading.ranking[0]
    rule = next(rule for rule in RULES if state in rule.states and rule.evidence(reading))
    gain = rule.gain(reading)
    facts = _Facts(reading, gain)
    return Finding(rule.words.format_map(facts), rule.advice.format_map(facts), gain, rule.is_sure(reading))


class _Facts(dict[str, str]):
    """What a rule may name: `{would}` and `{about}` are what it saves at most, or about; the others are of `FACTS`."""

    def __init__(self, reading: Reading, gain: float) -> None:
        super().__init__(would=f"would {saves_at_most(gain)}", about=f"would {_saves(gain)}")
        self._reading = reading

    def __missing__(self, name: str) -> str:
        return FACTS[name](self._reading)


def _saves(gain: float) -> str:
    return "about halve the time" if 0.45 <= gain <= 0.55 else saves_at_most(gain).replace("at most", "about")


def saves_at_most(gain: float) -> str:
    """What could be saved."""
    if gain > 0.99:
        return "save nearly all of the time"
    return "change little" if gain < 0.03 else f"save at most {share(gain)} of the time"


def _never(reading: Reading) -> bool:
    return False


def _always(reading: Reading) -> bool:
    return True


# How calls are limited.


def _has_slots_free(reading: Reading) -> bool:
    """Whether calls that are begun without a pause leave most of the slots free."""
    slots = reading.slots
    return slots is not None and (reading.in_flight_when_busy < slots / 2 or reading.peak <= 1 < slots)


def _is_one_by_one(reading: Reading) -> bool:
    return _has_slots_free(reading) and reading.in_flight_when_busy < 1.5


def _twice(reading: Reading) -> str:
    if reading.capacity is None:
        return "twice the capacity"
    # A small queue grows with the slots: else it would soon be full behind the slower calls.
    given, rows = reading.options.get("queue_size"), reading.queue_rows or 0
    is_small = given and rows < ROOM * 2 * reading.capacity * reading.batch_rows
    return f"capacity={2 * reading.capacity:_}" + (f" with queue_size={2 * rows:_}" if is_small else "")


# Slow calls, and rows behind them.


def _shorter_limit(reading: Reading) -> float:
    """Twice what nearly all calls take that come back; 0 if that is not much shorter than the limit."""
    limit = 0.0 if reading.time_limit is None else reading.time_limit[1]
    shorter = rounded_up(2 * reading.latency_below(0.9 * limit))
    return shorter if shorter < limit / 2 else 0.0


def _attempt_timeout(reading: Reading) -> float:
    """Three times what 99% took; 0 if that is not much shorter than the longest."""
    enough, longest = rounded_up(3 * reading.latency("p99")), reading.latency("max")
    return enough if enough < min(longest / 2, reading.options.get("attempt_timeout") or longest) else 0.0


def _is_slow(reading: Reading) -> bool:
    """Whether a few calls take so long that no queue or order of results would help."""
    if reading.ranking[0] is State.HEAD_OF_LINE:
        return _behind_head(reading) < LITTLE
    return reading.latency("max") >= SLOW * reading.latency("p50") > 0 and not _opens_long(reading)


def _runs_into_limit(reading: Reading) -> bool:
    return reading.timed_out >= MANY_TIMEOUTS and (reading.ranking[0] is State.CALLS_BUSY or _is_slow(reading))


def _of_slow(reading: Reading, shorter: float) -> float:
    """Of the time for the slowest calls (1 - new / longest) is saved, with shorter ones."""
    state, longest = reading.ranking[0], reading.latency("max")
    part = reading.share(state) * (reading.timed_out if state is State.CALLS_BUSY else 1.0)
    return part * max(0.0, 1 - shorter / longest) if longest else 0.0


def _slow(reading: Reading) -> str:
    half, longest = seconds(reading.latency("p50")), seconds(reading.latency("max"))
    if reading.ranking[0] is State.CALLS_BUSY:
        return f"{_slots(reading)}, {share(reading.timed_out)} of that with calls that ran into {reading.limit_text}"
    if reading.ranking[0] is State.WINDING_DOWN:
        return f"tasks waited for their last calls: half of all took {half}, the longest {longest}"
    return f"slots were free, but the queue was full behind {_head(reading)}"


def _head(reading: Reading) -> str:
    if _is_full_of_bytes(reading):
        return f"a slow row, with max_buffered_bytes={reading.options['max_buffered_bytes']:_} of results"
    if _is_full_of_waiting(reading):
        return f"rows that waited to be tried again{mostly(reading.errors)}"
    half, longest = seconds(reading.latency("p50")), seconds(reading.latency("max"))
    return f"a slow row: half of the calls took {half}, the longest {longest}"


def _other_order(reading: Reading) -> str:
    if reading.options.get("output_mode") == "unordered":
        return "fewer watermarks, or a shorter timeout,"
    return "unordered_wait, if the order of results does not matter,"


def _is_full_of_bytes(reading: Reading) -> bool:
    limit = reading.options.get("max_buffered_bytes")
    is_near = type(limit) is int and reading.count("bytes_peak") >= 0.9 * limit
    return is_near and reading.queued_peak < 0.9 * (reading.queue_rows or math.inf)


def _is_full_of_waiting(reading: Reading) -> bool:
    return reading.waited >= MUCH and not _is_full_of_bytes(reading)


def _is_head_clear(reading: Reading) -> bool:
    return reading.latency("max") >= SLOW * reading.latency("p50") or _is_full_of_waiting(reading)


def _behind_head(reading: Reading) -> float:
    return reading.beyond_longest_call(State.HEAD_OF_LINE)


def _better_queue(reading: Reading) -> int:
    """Rows of a queue that does not fill up during the longest call, or as many as one would have.

    0 if that is not at least twice as many as now: a little more is no answer.
    """
    half = min(reading.latency("p50"), reading.in_slot)  # in back-off a row has a place in the queue, and no slot
    if reading.slots is None or reading.queue_rows is None or not half or _is_full_of_bytes(reading):
        return 0
    ratio = min(reading.latency("max") / half, MOST_ROWS)
    enough = math.ceil(rounded_up(reading.slots * reading.batch_rows * ratio))
    better = min(enough, max(10 * reading.queue_rows, reading.usual_queue_rows or 0), MOST_ROWS)
    return better if better >= 2 * reading.queue_rows else 0


# Limits, and tasks.


def _limits(reading: Reading) -> list[str]:
    given = [name for name in ("rate_limit", "job_capacity") if reading.options.get(name)]
    return given or ["rate_limit"]


def _waits_for(reading: Reading) -> str:
    told = {"rate_limit": "a permit", "job_capacity": f"a share of job_capacity={reading.options.get('job_capacity')}"}
    return " or ".join(told[name] for name in _limits(reading))


def _better_store(reading: Reading) -> str:
    if reading.count("store_hits") < FEW_HITS * reading.lookups:
        return "to do without store=, if rows do not come again,"
    return "a faster store, such as ResultStore.disk on a local disk,"


def _opens_long(reading: Reading) -> bool:
    return reading.opening >= max(SOME, reading.share(State.WINDING_DOWN) / 2)


def _of_half_the_tasks(reading: Reading) -> float:
    """Each task starts and ends once."""
    if reading.tasks <= 1 or reading.ran_together:
        return 0.0
    return (reading.opening if _opens_long(reading) else reading.share(State.WINDING_DOWN)) / 2


def _ends(reading: Reading) -> str:
    if _opens_long(reading):
        each = seconds(reading.opening * reading.seconds / max(1, reading.tasks))
        return f"resources were opened and closed, {each} in a task"
    if reading.slots is not None and 0 < reading.rows_per_task < reading.slots * reading.batch_rows:
        rows = f"a task had {number(reading.rows_per_task)} rows for {count(reading.slots)} slots"
        return f"free slots had nothing to start: {rows}"
    return "fewer rows were left than slots: tasks are short for their calls"


def _fewer_tasks(reading: Reading) -> str:
    if reading.tasks <= 1:
        return "there is only one task: more rows in it, or faster calls, would use the slots better"
    if reading.ran_together:
        return "all tasks ran at the same time: fewer of them would free cores, but not end earlier"
    return f"half as many partitions would {_saves(_of_half_the_tasks(reading))}"


def skew(reading: Reading) -> Finding | None:
    """One task that goes on alone: in tasks of equal length the run would save what it takes beyond the mean."""
    tasks = sorted(reading.per_task, key=_length)
    if len(tasks) < 3 or not reading.wall:
        return None
    last, mean = tasks[-1], reading.seconds / max(1, reading.tasks)
    usual = statistics.median(map(_length, tasks))
    if _length(last) < max(3 * usual, reading.wall / 2):
        return None
    gain = min(1.0, (_length(last) - mean) / reading.wall)
    seen = f"one task of {count(reading.tasks)} took {seconds(_length(last))}, half of them at most {seconds(usual)}"
    if (last.get("rows") or 0) >= 2 * statistics.median(task.get("rows") or 0 for task in tasks):
        seen += f", as it had {count(last.get('rows'))} of {count(reading.count('rows'))} rows"
        return Finding(seen, f"partitions of equal size would {saves_at_most(gain)}", gain)
    seen += f", with no more rows than others (partition {last.get('partition')})"
    return Finding(seen, f"if it were as fast as others that would {saves_at_most(gain)}", gain)


def _length(task: Mapping[str, Any]) -> float:
    return task.get("seconds") or 0.0


def failed_attempts(reading: Reading) -> Finding | None:
    """What Spark has started again was done in vain."""
    failed = reading.plain.get("failed_attempts") or {}
    tasks = reading.plain.get("tasks") or {}
    number_of, spent = (tasks.get("failed") or 0) + (tasks.get("lost") or 0), failed.get("seconds") or 0.0
    if not number_of or not spent:
        return None
    gain = spent / (spent + reading.seconds)
    errors = failed.get("errors") or {}
    calls = f"{count(failed.get('calls'))} calls were made in vain{mostly(errors)}"
    attempts = things(number_of, "task attempt")
    seen = f"{attempts} failed and took {share(gain)} of all time: {calls}"
    if not tasks.get("failed"):
        return Finding(seen, "their executors were lost: Spark's log tells why", gain)
    if not errors or reading.options.get("on_error", "raise") != "raise":  # no row's error ended them
        return Finding(seen, "Spark's log tells why", gain)
    return Finding(seen, 'on_error="null" or "dead_letter" keeps a task going when a row fails', gain)


# Calls that do not come back are in no latency, and the figures of the others tell nothing of them.


def _never_came_back(reading: Reading) -> bool:
    begun = reading.flying or reading.count("abandoned") or reading.ranking[0] is State.CALLS_BUSY
    return not reading.calls_ended and bool(begun)


def _is_silent(reading: Reading) -> bool:
    is_long = reading.silence >= LONG_SILENCE * reading.latency("max")
    return _never_came_back(reading) or (reading.calls_ended > 0 and reading.silent >= MUCH and is_long)


def _silence(reading: Reading) -> str:
    told = seconds(reading.silence or reading.wall or reading.seconds)
    if reading.calls_ended:
        told += f", where the longest took {seconds(reading.latency('max'))}"
    are = "is" if reading.flying == 1 else "are"
    return told + (f", and {number(reading.flying)} {are} in flight" if reading.flying else "")


def mostly(errors: Mapping[str, int]) -> str:
    """The commonest error, in brackets; nothing if there is none."""
    kind = max(errors, key=lambda kind: errors[kind]) if errors else None
    return "" if kind is None else f" (mostly {one_line(kind)})"


def _slots(reading: Reading) -> str:
    if reading.slots == 1:
        return "the only slot of a task was busy"
    return f"all {'' if reading.slots is None else count(reading.slots) + ' '}slots of a task were busy"


def _neighbour(in_a_chain: str, else_: str) -> Callable[[Reading], str]:
    return lambda reading: in_a_chain if reading.plain.get("entry_point") == "operator" else else_


FACTS: Mapping[str, Callable[[Reading], str]] = {
    "after": _neighbour("Spark, or the function behind,", "Spark downstream"),
    "alone": lambda r: seconds(r.alone),
    "at_once": lambda r: count(r.at_once),
    "attempt_timeout": lambda r: f"{_attempt_timeout(r):g}",
    "before": _neighbour("Spark, or the function before,", "Spark upstream"),
    "better_store": _better_store,
    "blocked": lambda r: seconds(r.time[State.BLOCKED_LOOP]),
    "capacity": lambda r: count(r.capacity),
    "ends": _ends,
    "errors": lambda r: mostly(r.errors),
    "fewer_tasks": _fewer_tasks,
    "few_calls": lambda r: things(r.slots, "call"),
    "flying": lambda r: number(r.in_flight),
    "found": lambda r: f"{count(r.count('store_hits'))} of {things(r.lookups, 'row')}",
    "half": lambda r: seconds(r.latency("p50")),
    "head": _head,
    "in_use": lambda r: number(r.in_flight_when_busy),
    "limits": lambda r: " or ".join(_limits(r)),
    "longest": lambda r: seconds(r.latency("max")),
    "mean": lambda r: seconds(r.latency("mean")),
    "n_slots": lambda r: count(r.slots),
    "other_order": _other_order,
    "peak": lambda r: count(r.peak),
    "processor": lambda r: share(min(1.0, r.processor)),
    "queue": lambda r: f"{_better_queue(r):_}",
    "queue_of_all": lambda r: f"{(r.capacity or 1) * r.batch_rows:_}",
    "queue_rows": lambda r: count(r.queue_rows),
    "refused": lambda r: things(r.count("throttled"), "call"),
    "retried": lambda r: share(r.retried),
    "shorter_limit": lambda r: "" if r.time_limit is None else f"{r.time_limit[0]}={_shorter_limit(r):g}",
    "silence": _silence,
    "slots": _slots,
    "slow": _slow,
    "tells_which": lambda r: f"{'a shorter ' if r.options.get('attempt_timeout') else ''}attempt_timeout= tells which",
    "twice": _twice,
    "waits_for": _waits_for,
}

_AWAITING = (State.CALLS_BUSY, State.HEAD_OF_LINE, State.INPUT, State.WINDING_DOWN)  # the others have their own reason
_BUSY, _COMPUTING = (State.CALLS_BUSY,), (State.CALLS_BUSY, State.BLOCKED_LOOP)
_HEAD, _DOWN = (State.HEAD_OF_LINE,), (State.WINDING_DOWN,)
_SLOW = (*_BUSY, *_HEAD, *_DOWN)
_FULL = "slots were free, but the queue was full behind {head}"
_CROWDED = (
    "{slots}, but calls took {alone} while few were in flight and {half} else: the service, or the client's own pool, "
)
_ONE_THREAD = "a task's one thread is the limit, and more capacity changes nothing"
_PARTITIONS = "more partitions on more cores, or less computing, would help"
_NO_BLOCKS = "if a service is waited for, an asynchronous client, or a plain def (which runs in threads), "
_TO_COMPUTE = "; for computing only more cores help"

# The first whose evidence is there is told; the last of each state needs none. A number is given where the run itself
# shows what the change saves, and "sure" is said where no service could make it untrue.
RULES: tuple[Rule, ...] = (
    Rule(
        _AWAITING,
        lambda r: not r.calls_ended and r.count("store_hits") > 0 and not _never_came_back(r),
        "nothing was called, as {found} were found in the store: no option of the calls changes that",
        "what is left is Spark's work, and reading the store",
    ),
    Rule(_AWAITING, _is_silent, "no call has come back for {silence}", "{tells_which}", is_sure=_never),
    Rule(
        _COMPUTING,
        lambda r: r.processor >= COMPUTES,
        "a task's process computed for {processor} of its time: its processor is the limit, and more capacity changes "
        "nothing",
        _PARTITIONS,
    ),
    Rule(
        _BUSY,
        lambda r: _is_one_by_one(r) and r.latency("mean") >= NO_WAIT,
        "calls ran one after another, {mean} each: they never give way, and capacity changes nothing",
        _NO_BLOCKS + "{would}" + _TO_COMPUTE,
        lambda r: r.at_most(State.CALLS_BUSY),
    ),
    Rule(
        _BUSY,
        _has_slots_free,
        "calls were begun without a pause, {mean} each, and still only {in_use} of {n_slots} slots were in use: "
        + _ONE_THREAD,
        _PARTITIONS,
        is_sure=_never,
    ),
    Rule(
        (State.BLOCKED_LOOP,),
        lambda r: r.peak <= 1,
        "({blocked}) synchronous code kept the event loop from everything else: no other call could go on",
        _NO_BLOCKS + "{would}" + _TO_COMPUTE,
        lambda r: r.at_most(State.BLOCKED_LOOP),
    ),
    Rule(
        _COMPUTING,
        lambda r: r.share(State.BLOCKED_LOOP) >= BLOCKS,
        "synchronous code kept the event loop from everything else ({blocked} or more): calls in flight waited for it, "
        "and capacity changes nothing",
        _NO_BLOCKS + "lets them go on" + _TO_COMPUTE,
        is_sure=_never,  # a machine with more to do than cores looks the same
    ),
    Rule(
        (*_BUSY, *_HEAD),
        lambda r: r.slots is not None and r.slots < (r.capacity or 0) and r.latency("max") < SLOW * r.latency("p50"),
        "{few_calls} filled the queue of {queue_rows} rows, with {capacity} slots for calls",
        "queue_size={queue_of_all} {about} if calls take no longer then and Spark keeps up",
        lambda r: r.share(r.ranking[0]) * (1 - (r.slots or 1) / (r.capacity or 1)),
        _never,
    ),
    Rule(
        _SLOW,
        lambda r: _runs_into_limit(r) and _shorter_limit(r) > 0,
        "{slow}",
        "{shorter_limit}, twice what 99% of the others took, {would}",
        lambda r: _of_slow(r, _shorter_limit(r)),
    ),
    Rule(
        _SLOW,
        _runs_into_limit,
        "{slow}",
        "a service that answers in time {would}",
        lambda r: _of_slow(r, 0.0),
    ),
    Rule(
        _BUSY,
        lambda r: r.retried >= MANY_RETRIES,
        "{slots}, and {retried} of the attempts were retries{errors}: what fails is the limit",
        "a service that does not fail {about}; more capacity may make more calls fail",
        # An attempt in vain holds a slot as any other: the same calls in (1 - retried) of the attempts.
        lambda r: r.share(State.CALLS_BUSY) * r.retried,
        _never,  # failed attempts may take less time than others
    ),
    Rule(
        _BUSY,
        lambda r: r.finds_capacity,
        "as many calls were in flight as the service was found to take ({flying} in the mean of a task, {peak} at "
        "most), and they took {mean}: the service is the limit",
        "a larger maximum of capacity helps only if it was reached",
        is_sure=_never,
    ),
    Rule(
        _BUSY,
        lambda r: r.is_saturated and r.at_once > 0,
        _CROWDED + "takes about {at_once} at once, and more capacity changes nothing",
        "one that takes more would help; capacity={at_once} takes as long, with shorter calls",
    ),
    Rule(
        _BUSY,
        lambda r: r.is_saturated,
        _CROWDED + "is slower with more calls, and more capacity changes little",
        "one that takes more would help; a lower capacity may take as long, with shorter calls",
        is_sure=_never,
    ),
    Rule(
        _BUSY,
        lambda r: r.is_steady,
        "{slots} and calls took {mean} from first to last: capacity is the limit",
        "{twice} {about} if the service takes so many at once and Spark keeps up",
        lambda r: r.share(State.CALLS_BUSY) / 2,
        _never,
    ),
    Rule(
        _BUSY,
        _always,
        "{slots} and calls took {mean}: the service or capacity is the limit",
        "try {twice}: if calls then take longer, the service is the limit",
        is_sure=_never,
    ),
    Rule(
        _HEAD,
        lambda r: _behind_head(r) >= LITTLE and _better_queue(r) > 0,
        _FULL,
        "queue_size={queue} {would}",
        _behind_head,
        _is_head_clear,
    ),
    Rule(
        _HEAD,
        _is_full_of_waiting,
        _FULL,
        "shorter delays of retry= {would}",
        lambda r: r.at_most(State.HEAD_OF_LINE),
    ),
    Rule(
        _DOWN,
        lambda r: r.waited >= MUCH and not _opens_long(r),
        "the last rows of a task waited to be tried again{errors}",
        "shorter delays of retry= {would}",
        lambda r: r.at_most(State.WINDING_DOWN) * r.waited,
        _never,
    ),
    Rule(
        (*_HEAD, *_DOWN),
        lambda r: _is_slow(r) and _attempt_timeout(r) > 0,
        "{slow}",
        "attempt_timeout={attempt_timeout} with retry= {would}, if a second attempt is not as slow",
        lambda r: _of_slow(r, _attempt_timeout(r)),
        _never,
    ),
    Rule(
        (*_HEAD, *_DOWN),
        _is_slow,
        "{slow}",
        "calls that all take as long as half of them {would}",
        lambda r: _of_slow(r, r.latency("p50")),
        _never,
    ),
    Rule(_HEAD, _always, _FULL, "{other_order} {would}", _behind_head, _is_head_clear),
    Rule(_DOWN, _always, "{ends}", "{fewer_tasks}", _of_half_the_tasks),
    Rule(
        (State.INPUT,),
        _always,
        "slots were free and no rows came: {before} is the limit, and more capacity changes nothing",
        "more partitions on more cores, or less work before the calls, {would}",
        lambda r: r.at_most(State.INPUT),
    ),
    Rule(
        (State.OUTPUT,),
        _always,
        "results were not taken: {after} is the limit, and more capacity here changes nothing",
        "a faster reader (the next function, the write), or more partitions, {would}",
        lambda r: r.at_most(State.OUTPUT),
    ),
    Rule(
        (State.LIMIT,),
        lambda r: r.count("refused_seconds") >= MUCH * r.time[State.LIMIT],
        "calls were held back because the service refused {refused}: it allows fewer than were made, and capacity "
        "changes nothing",
        "a rate_limit just below what it allows would spare the calls that it refuses",
    ),
    Rule(
        (State.LIMIT,),
        _always,
        "calls waited for {waits_for}: what you allow is the limit, and capacity changes nothing",
        "a higher {limits}, if the service allows it, {would}",
        lambda r: r.at_most(State.LIMIT),
        lambda r: len(_limits(r)) == 1 and not r.count("throttled"),
    ),
    Rule(
        (State.BREAKER,),
        _always,
        "the circuit breaker was open: the service failed too often{errors}, and no option mends that",
        "a service that is well {would}",
        lambda r: r.at_most(State.BREAKER),
    ),
    Rule(
        (State.STORE,),
        _always,
        "rows waited for stored results: the store is the limit ({found} were found there)",
        "{better_store} {would}",
        lambda r: r.at_most(State.STORE),
    ),
)
