"""What limits a function: for each state that may cost most, the causes in question, with their evidence and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from .._metrics.time_account import State
from .._text.figures import count, number, seconds, share, things
from .._text.safe import one_line
from .function_figures import FunctionFigures, rounded_up

MUCH = 0.5  # of the calls' time, of a state, of a processor
MANY_SHARE = 0.2  # of the attempts, of the rows
FEW_SLOTS = 8  # a service may take no more, and the user may know
MANY_TIMEOUTS = 0.3  # of the calls' time
SECOND = 0.2  # of the time: a second limit, which holds when the first is gone
BLOCKS = 0.15  # of the time: with calls in flight, whose latency the blocks become
NO_WAIT = 1e-3  # seconds; what takes less hardly waits for a service
SLOW = 5  # times as long as half of the calls
LITTLE = 0.1  # of the time: another change is looked for
SOME_SHARE = 0.01  # of the time
ROOM = 10  # times as many rows as slots in a queue that hardly any slow call fills
MOST_ROWS = 1_000_000  # in a queue that a user would want
FEW_HITS = 0.05  # of the rows that a store is asked for
LONG_SILENCE = 10  # times as long as the longest call
CLEARLY_MORE = 1.5  # times as long
THREADS = "def"  # the kind of a function that runs in threads
ON_DISK = ("ResultStore.disk", "ResultStore.executor")


class Diagnosis(NamedTuple):
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


def diagnosis(f: FunctionFigures) -> Diagnosis:
    """The first diagnosis that the figures show; the last one of each state needs no evidence."""
    return next(chain(_hits_alone(f), _no_call_came_back(f), _equal_rows(f), CAUSES[f.top](f)))


def at_most(gain: float) -> str:
    """What a change would save, where the number is a bound."""
    if gain > 0.99:
        return "would save nearly all of the time"
    return "would change little" if gain < 0.03 else f"would save at most {share(gain)} of the time"


def about(gain: float) -> str:
    """What a change would save, where the number is an estimate."""
    return "would about halve the time" if 0.45 <= gain <= 0.55 else at_most(gain).replace("at most", "about")


def mostly(errors: Mapping[str, int]) -> str:
    """The commonest error, in brackets; nothing if there is none."""
    kind = max(errors, key=lambda kind: errors[kind]) if errors else None
    return "" if kind is None else f" (mostly {one_line(kind)})"


def _hits_alone(f: FunctionFigures) -> Iterator[Diagnosis]:
    """Rows that were all found in the store, if the task waited neither for it nor for what reads the results."""
    waited = f.top in (State.STORE, State.OUTPUT) and f.processor < MUCH
    if f.count("store_hits") and not f.count("calls") and not waited:
        change = "what is left is Spark's work, and reading the store"
        if f.processor >= MUCH:
            change = f"reading them took a processor {share(min(1.0, f.processor))} of the time: {MORE_CORES}"
        yield Diagnosis(f"nothing was called, as {_found(f)} in the store: no option of the calls changes that", change)


def _no_call_came_back(f: FunctionFigures) -> Iterator[Diagnosis]:
    """Calls that do not come back are in no latency, and the figures of the others do not show them."""
    if f.top not in (State.CALLS_BUSY, State.HEAD_OF_LINE, State.INPUT, State.WINDING_DOWN):
        return  # the others wait for something else
    if not f.calls_ended and (f.flying or f.count("abandoned") or f.top is State.CALLS_BUSY):
        is_silent = True
    else:
        is_silent = f.silent >= MUCH and f.silence >= LONG_SILENCE * f.latency("max") and f.calls_ended > 0
    if is_silent:
        seen = f"no call has returned for {seconds(f.silence or f.wall or f.seconds)}"
        if f.calls_ended:
            seen += f", where the longest took {seconds(f.latency('max'))}"
        if f.flying:
            seen += f", and {number(f.flying)} {'is' if f.flying == 1 else 'are'} in flight"
        shorter = "a shorter " if f.options.get("attempt_timeout") else ""
        yield Diagnosis(seen, f"{shorter}attempt_timeout= tells which", is_sure=False)


def _equal_rows(f: FunctionFigures) -> Iterator[Diagnosis]:
    """Rows that a store has no result for wait for the call of an equal row, and free slots have nothing to do."""
    waits = f.top in (State.HEAD_OF_LINE, State.INPUT, State.WINDING_DOWN)
    followed = f.count("following_seconds")
    if not waits or not f.time[f.top] or followed < MUCH * f.time[f.top]:
        return
    seen = "slots were free, but rows waited for the calls of equal rows"
    if f.count("repeated_seconds") >= MUCH * followed:
        yield Diagnosis(
            f"{seen}, which failed{mostly(f.errors)} and were made again for each",
            "error_ttl= of the store gives equal rows the first one's error",
            is_sure=False,
        )
    elif f.top is not State.INPUT and _is_even(f):  # else other rows, without equals, would be waited for as well
        yield Diagnosis(seen, "shorter calls would help", is_sure=False)


# All slots have a call, or the event loop was blocked.


def _calls_busy(f: FunctionFigures) -> Iterator[Diagnosis]:
    yield from _computing(f)
    if f.slots and (f.in_flight_when_busy < f.slots / 2 or f.peak <= 1 < f.slots):  # most slots are free, though
        each = f"{seconds(f.latency('mean'))} each"
        if f.in_flight_when_busy < 1.5 and f.latency("mean") >= NO_WAIT:
            gain = f.at_most(f.top)
            yield Diagnosis(
                f"calls ran one after another, {each}: they block the event loop, and capacity changes nothing",
                _no_blocks(f, at_most(gain)),
                gain,
            )
        in_use = f"{number(f.in_flight_when_busy)} of {count(f.slots)} slots were in use"
        yield Diagnosis(
            f"calls were begun without a pause, {each}, and still only {in_use}: a task's one thread is the limit, and "
            "more capacity changes nothing",
            MORE_CORES,
            is_sure=False,
        )
    yield from _blocks(f)
    yield from _queue_of_few_calls(f)
    yield from _timeouts(f)
    yield from _failures(f)
    if f.finds_capacity:
        flying = f"({number(f.in_flight)} per task on average, {count(f.peak)} at most), and they took"
        took = seconds(f.latency("mean"))
        if f.is_steady:
            yield Diagnosis(
                f"as many calls were in flight as capacity had grown to {flying} {took} from first to last: the "
                "service was not the limit",
                "a larger maximum would help if it was reached, else a larger minimum",
                is_sure=False,
            )
        yield Diagnosis(
            f"as many calls were in flight as the service was found to take {flying} {took}: the service is the limit",
            "a larger maximum of capacity helps only if it was reached",
            is_sure=False,
        )
    yield from _overtaken(f)
    yield from _saturated(f)
    yield from _slots_too_few(f)


def _blocked_loop(f: FunctionFigures) -> Iterator[Diagnosis]:
    yield from _computing(f)
    gain, blocked = f.at_most(f.top), f"({seconds(f.time[f.top])}) synchronous code blocked the event loop"
    if f.peak <= 1:
        seen = f"{blocked}: no other call could go on"
        yield Diagnosis(seen, _no_blocks(f, at_most(gain)), gain)
    yield from _blocks(f)


def _computing(f: FunctionFigures) -> Iterator[Diagnosis]:
    if f.processor >= MUCH:  # twice as many calls would need a whole processor
        yield Diagnosis(
            f"a task's process computed for {share(min(1.0, f.processor))} of its time: its processor is the limit, "
            "and more capacity changes nothing",
            MORE_CORES,
        )


def _blocks(f: FunctionFigures) -> Iterator[Diagnosis]:
    if f.share(State.BLOCKED_LOOP) >= BLOCKS:
        kept, blocked = "synchronous code blocked the event loop", State.BLOCKED_LOOP
        if f.top is blocked:
            kept += f" ({seconds(f.time[blocked])} or more)"
        else:
            kept = f"{_slots(f)}, but for {share(f.share(blocked))} {kept}"
        yield Diagnosis(
            f"{kept}: calls waited for it, and capacity changes nothing",
            _no_blocks(f, "lets them go on"),
            is_sure=False,  # a machine with more to do than cores looks the same
        )


def _failures(f: FunctionFigures) -> Iterator[Diagnosis]:
    retried, failed = f.part("retries", of="attempts"), f.part("failures", of="rows")
    if f.part("throttled", of="attempts") >= MANY_SHARE:
        yield Diagnosis(f"{_slots(f)}, but {_refused(f)}", _lower_limit(f), is_sure=False)
    if retried >= MANY_SHARE:
        gain, retries = f.if_no_attempt_failed(), f"{share(retried)} of the attempts were retries{mostly(f.errors)}"
        yield Diagnosis(
            f"{_slots(f)}, and {retries}: what fails is the limit",
            f"a service that does not fail {about(gain)}; more capacity may make more calls fail",
            gain,
            is_sure=False,  # failed attempts may take less time than others
        )
    yield from _unkept(f, _slots(f))
    if failed >= MANY_SHARE:
        yield Diagnosis(
            f"{_slots(f)}, but {share(failed)} of the rows failed{mostly(f.errors)}: their calls were made in vain",
            "first look why they fail (run.metrics has examples): more capacity may make more calls fail",
            is_sure=False,
        )


def _unkept(f: FunctionFigures, seen: str) -> Iterator[Diagnosis]:
    """Most calls are for rows that fail for good, and the store has no `error_ttl`."""
    called = f.count("rows") - f.count("store_hits") - f.count("shared_flights")
    if called > 0 and f.count("unkept_failures") >= MUCH * called:
        part = share(min(1.0, f.count("unkept_failures") / called))
        yield Diagnosis(
            f"{seen}, and {part} of the called rows failed for good{mostly(f.errors)}: the store keeps no errors",
            "error_ttl= of the store spares their calls in the next run, and those of equal rows",
            is_sure=False,
        )


def _overtaken(f: FunctionFigures) -> Iterator[Diagnosis]:
    if at_once := f.were_overtaken:
        yield Diagnosis(
            f"{_slots(f)}, but half of the calls took {seconds(f.latency('p50'))} and the mean is "
            f"{seconds(f.latency('mean'))}: the client's pool (in aiohttp TCPConnector(limit=...)), or the service, "
            f"takes about {_of_each_task(f, at_once)}, and newer calls pass older ones",
            "a larger pool would help" + _fewer(f, at_once),
            is_sure=False,
        )


def _saturated(f: FunctionFigures) -> Iterator[Diagnosis]:
    if not f.is_saturated:
        return
    alone, half = seconds(f.alone), seconds(f.latency("p50"))
    seen = f"{_slots(f)}, but calls took {half} ({alone} while few were in flight): "
    if f.best_at_once:
        yield Diagnosis(
            f"{seen}the service answers fewer calls the more it has",
            f'try capacity={f.best_at_once}, or capacity="auto", which finds how many it takes',
            is_sure=False,
        )
    here = "a blocked loop"
    if f.processor >= LITTLE:
        here = f"this machine (processor time {share(min(1.0, f.processor))})"
    seen += f"the service, the client's pool, or {here} "
    if f.at_once:
        yield Diagnosis(
            f"{seen}takes at most about {_of_each_task(f, f.at_once)}, and more capacity changes nothing",
            "one that takes more would help" + _fewer(f, f.at_once),
            is_sure=False,
        )
    yield Diagnosis(
        f"{seen}is slower with more calls, and more capacity changes little",
        "a lower capacity may take as long, with shorter calls",
        is_sure=False,
    )


def _of_each_task(f: FunctionFigures, calls: int) -> str:
    return f"{calls} at once" + ("" if f.at_a_time == 1 else f" from each of {f.at_a_time} tasks")


def _fewer(f: FunctionFigures, at_once: int) -> str:
    enough = 2 * at_once  # with as many calls in flight the service is still busy, though the estimate be low
    return f"; capacity={enough} takes as long, with shorter calls" if enough < (f.slots or 0) else ""


def _slots_too_few(f: FunctionFigures) -> Iterator[Diagnosis]:
    other = _second_limit(f)
    if f.share(other) >= SECOND:
        gain = f.at_most(other)
        yield Diagnosis(
            f"{_slots(f)}, but for {share(f.share(other))} {SECONDS[other]}: more capacity alone would wait for that",
            f"{REMEDIES[other](f)} {at_most(gain)}, and more with more capacity",
            gain,
            is_sure=False,
        )
    took = f"{_slots(f)} and calls took {seconds(f.latency('mean'))}"
    if f.capacity is None:
        twice = "twice the capacity"
    else:  # a small queue grows with the slots: else it would soon be full behind the slower calls
        rows = f.queue_rows or 0
        is_small = 0 < rows < ROOM * 2 * f.capacity * f.batch_rows
        twice = f"capacity={2 * f.capacity:_}" + (f" with queue_size={2 * rows:_}" if is_small else "")
    if f.is_steady and (f.slots is None or f.slots > FEW_SLOTS):
        gain = f.share(f.top) / 2
        limit = "".join(f", {name} allows it" for name in _given_limits(f) if name != "max_calls")
        yield Diagnosis(
            f"{took} from first to last: capacity is the limit",
            f"{twice} {about(gain)} if the service takes so many at once{limit} and Spark keeps up",
            gain,
            is_sure=False,
        )
    refused = " or more of them are refused" if f.count("throttled") else ""
    yield Diagnosis(
        f"{took}: the service or capacity is the limit",
        f"try {twice}: if calls then take longer{refused}, the service is the limit",
        is_sure=False,
    )


# Slow calls, and the rows behind them.


def _head_of_line(f: FunctionFigures) -> Iterator[Diagnosis]:
    yield from _queue_of_few_calls(f)
    gain = f.at_most(f.top)
    if is_slow := gain < LITTLE:
        yield from _timeouts(f)
    seen, is_waiting = _full(f), f.waited >= MUCH and not _is_full_of_bytes(f)
    is_clear = is_waiting or not _is_even(f)
    if not is_slow and (better := _better_queue(f)):
        if f.share(second := _second_limit(f)) >= LITTLE:
            until = f"but for {share(f.share(second))} of the time {SECONDS[second]}: that is the next limit"
            yield Diagnosis(seen, f"try queue_size={better:_}; {until}", is_sure=False)
        yield Diagnosis(seen, f"queue_size={better:_} {at_most(gain)}", gain, is_clear)
    if is_waiting:
        yield from _shorter_waits(f, seen, f.if_calls_waited_less(f.top), is_sure=True)
    if is_slow:
        yield _shorter_calls(f, seen)
    other = "unordered_wait, if the order of results does not matter,"
    if f.options.get("output_mode") == "unordered":
        other = f"fewer watermarks, or {'a shorter' if f.options.get('timeout') else 'a'} timeout,"
    yield Diagnosis(seen, f"{other} {at_most(gain)}", gain, is_clear)


def _winding_down(f: FunctionFigures) -> Iterator[Diagnosis]:
    opens_long = f.opening >= max(SOME_SHARE, f.share(f.top) / 2)
    half = f.latency("p50")
    is_slow = not _is_even(f) and half > 0 and not opens_long and f.waiting_beyond(half) >= MUCH * f.share(f.top)
    if is_slow:
        yield from _timeouts(f)
    if f.waited >= MUCH and not opens_long:
        seen = f"tasks waited for the last of the rows that {_in_back_off(f)}"
        yield from _shorter_waits(f, seen, f.if_calls_waited_less(f.top) * f.waited, is_sure=False)
    if is_slow:
        yield _shorter_calls(f, _last_calls(f))
    seen = "fewer rows were left than slots: tasks are short for their calls"
    if opens_long:
        seen = f"resources were opened and closed, {seconds(f.opening * f.seconds / max(1, f.tasks))} in a task"
    elif f.slots is not None and 0 < f.rows_per_task < f.slots * f.batch_rows:
        rows = f"a task had {number(f.rows_per_task)} rows for {count(f.slots)} slots"
        seen = f"free slots had nothing to start: {rows}"
    if not f.ran_together:  # each task starts and ends once
        gain = (f.opening if opens_long else f.share(f.top)) / 2
        yield Diagnosis(seen, f"half as many partitions {about(gain)}", gain)
    elif opens_long:
        yield Diagnosis(seen, f"resources that open faster {at_most(f.opening)}", f.opening)
    elif f.tasks <= 1:
        yield Diagnosis(seen, "there is only one task: only faster calls would end it earlier")
    else:
        change = "fewer of them would free cores, but not end earlier; faster calls would"
        yield Diagnosis(seen, f"all tasks ran at the same time: {change}")


def _timeouts(f: FunctionFigures) -> Iterator[Diagnosis]:
    if f.time_limit is None or f.timed_out < MANY_TIMEOUTS:
        return
    name, limit = f.time_limit
    seen = f"{_slots(f)}, {share(f.timed_out)} of that with calls that ran into {name}={limit:g}"
    if f.top is State.CALLS_BUSY and f.is_saturated:
        yield Diagnosis(
            f"{seen}; only the first calls were quick: the service has too many at once, or it answers no more",
            "try a lower capacity: if calls then end in time, the service takes fewer",
            is_sure=False,
        )
    if f.top is not State.CALLS_BUSY:
        seen = _full(f) if f.top is State.HEAD_OF_LINE else _last_calls(f)
    change, gain = "a service that answers in time", f.if_no_call_took_longer(f.shorter_limit)
    if f.shorter_limit:
        change = f"{name}={f.shorter_limit:g}, twice what 99% of the others took,"
    yield Diagnosis(seen, f"{change} {at_most(gain)}", gain)


def _shorter_calls(f: FunctionFigures, seen: str) -> Diagnosis:
    longest = f.latency("max")
    enough = rounded_up(3 * f.latency("p99"))
    if enough < min(longest / 2, f.options.get("attempt_timeout") or longest):
        gain = f.if_no_call_took_longer(enough)
        again = "" if f.options.get("retry") else " with retry="
        change = f"attempt_timeout={enough:g}{again} {at_most(gain)}, if a second attempt is not as slow"
    else:
        gain = f.if_no_call_took_longer(f.latency("p50"))
        change = f"calls that all take as long as half of them {at_most(gain)}"
    return Diagnosis(seen, change, gain, is_sure=False)


def _shorter_waits(f: FunctionFigures, seen: str, gain: float, *, is_sure: bool) -> Iterator[Diagnosis]:
    """Rows in back-off were waited for."""
    if _was_refused(f):
        yield Diagnosis(seen, _lower_limit(f), is_sure=False)
    elif f.options.get("retry"):
        yield Diagnosis(seen, f"shorter delays of retry= {at_most(gain)}", gain, is_sure)


def _was_refused(f: FunctionFigures) -> bool:
    """Whether most rows in back-off wait as long as the service has asked."""
    return f.part("throttled", of="retries") >= MUCH


def _in_back_off(f: FunctionFigures) -> str:
    why = "the service had refused for a while" if _was_refused(f) else "waited to be tried again"
    return f"{why}{mostly(f.errors)}"


def _queue_of_few_calls(f: FunctionFigures) -> Iterator[Diagnosis]:
    if f.slots and f.capacity and f.slots < f.capacity and _is_even(f):
        gain = f.share(f.top) * (1 - f.slots / f.capacity)
        queue = f"queue_size={f.capacity * f.batch_rows:_}"
        yield Diagnosis(
            f"{things(f.slots, 'call')} filled the queue of {count(f.queue_rows)} rows, with {count(f.capacity)} slots "
            "for calls",
            f"{queue} {about(gain)} if calls take no longer then and Spark keeps up",
            gain,
            is_sure=False,
        )


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


def _is_even(f: FunctionFigures) -> bool:
    return f.latency("max") < SLOW * f.latency("p50")


def _is_full_of_bytes(f: FunctionFigures) -> bool:
    limit = f.options.get("max_buffered_bytes")
    is_near = type(limit) is int and f.count("bytes_peak") >= 0.9 * limit
    return is_near and f.queued_peak < 0.9 * (f.queue_rows or math.inf)


# Whatever else rows wait for.


def _input(f: FunctionFigures) -> Iterator[Diagnosis]:
    before = _neighbor(f, "previous", "the query before the function")
    seen = f"slots were free and no rows came: {before} is the limit, and more capacity changes nothing"
    yield _remedy(f, seen)


def _output(f: FunctionFigures) -> Iterator[Diagnosis]:
    behind = _neighbor(f, "next", "the query after the function")
    yield _remedy(f, f"results waited to be read: {behind} is the limit, and more capacity here changes nothing")


def _limit(f: FunctionFigures) -> Iterator[Diagnosis]:
    given = _given_limits(f)
    if f.count("refused_seconds") >= MUCH * f.time[f.top] or (f.count("throttled") and not given):
        yield Diagnosis(f"calls were held back because {_refused(f)}", _lower_limit(f), is_sure=False)
    if f.part("throttled", of="attempts") >= SOME_SHARE:
        allowed = _shown_limit(f, f.limit) if len(f.limits) > 1 and f.limit else " and ".join(f"{n}=" for n in given)
        yield Diagnosis(f"calls waited for {allowed}, and still {_refused(f)}", _lower_limit(f), is_sure=False)
    yield from _unkept(f, "calls waited for what you allow")
    if len(f.limits) > 1 and f.limit:
        yield _one_of_several_limits(f)
    words = {"job_capacity": f"a share of job_capacity={f.options.get('job_capacity')}", "max_calls": "max_calls"}
    waited = " or ".join(words.get(name, "a permit") for name in given)
    seen = f"calls waited for {waited}: what you allow is the limit, and capacity changes nothing"
    yield _remedy(f, seen)._replace(is_sure=False)  # rows that wait hide how fast they came


def _one_of_several_limits(f: FunctionFigures) -> Diagnosis:
    first, second, *others = sorted(f.limits, key=lambda limit: -f.limits[limit])
    parts = {limit: share(f.limits[limit] / sum(f.limits.values())) for limit in f.limits}
    seen = f"calls waited for what you allow, {parts[first]} of that for {_shown_limit(f, first)}"
    allowed = "if the service allows it and Spark keeps up,"
    if f.limits[first] < CLEARLY_MORE * f.limits[second]:
        seen += f" and {parts[second]} for {_shown_limit(f, second)}: these are the limit, and capacity changes nothing"
        return Diagnosis(seen, f"higher ones, {allowed} would help", is_sure=False)
    seen += ": this is the limit, and capacity changes nothing"
    then = "another of them" if others else _shown_limit(f, second)
    return Diagnosis(seen, f"a higher one, {allowed} helps until {then} is the limit", is_sure=False)


def _breaker(f: FunctionFigures) -> Iterator[Diagnosis]:
    failed = f"the service failed too often{mostly(f.errors)}"
    yield _remedy(f, f"the circuit breaker was open: {failed}, and no option fixes that")


def _store(f: FunctionFigures) -> Iterator[Diagnosis]:
    yield _remedy(f, f"rows waited for stored results: the store is the limit ({_found(f)} there)")


def _remedy(f: FunctionFigures, seen: str) -> Diagnosis:
    gain, full = f.at_most(f.top), "" if f.was_full else f" if the service takes {things(f.slots, 'call')} at once"
    others = sum(f.share(state) for state in State if state not in (f.top, State.CALLS_BUSY))
    change = f"{REMEDIES[f.top](f)} {at_most(gain)}{full if gain >= LITTLE else ''}"
    return Diagnosis(seen, change, gain, is_sure=f.was_full and others < SECOND)


def _second_limit(f: FunctionFigures) -> State:
    """The state that limits the calls once the first limit is gone."""
    return max((state for state in SECONDS if state is not f.top), key=lambda state: f.time[state])


def _better_store(f: FunctionFigures) -> str:
    if f.count("store_hits") < FEW_HITS * _lookups(f):
        return "to do without store=, if rows do not come again,"
    if str(f.options.get("store")).startswith(ON_DISK):
        return "a faster disk"
    return "a faster store, such as ResultStore.disk on a local disk,"


# Words that several diagnoses have.


def _no_blocks(f: FunctionFigures, effect: str) -> str:
    if f.options.get("kind") == THREADS:  # the calls of a plain def hold the interpreter: it computes
        return MORE_CORES
    threads = "an asynchronous client, or a plain def (which runs in threads)"
    return f"if a service is waited for, {threads}, {effect}; for computing only more cores help"


def _slots(f: FunctionFigures) -> str:
    if f.slots == 1:
        return "the only slot of a task was busy"
    return f"all {'' if f.slots is None else count(f.slots) + ' '}slots of a task were busy"


def _full(f: FunctionFigures) -> str:
    head = f"a slow row: half of the calls took {seconds(f.latency('p50'))}, the longest {seconds(f.latency('max'))}"
    if _is_full_of_bytes(f):
        head = f"a slow row: the rows that wait take max_buffered_bytes={f.options['max_buffered_bytes']:_}"
    elif f.waited >= MUCH:
        head = f"rows that {_in_back_off(f)}"
    return f"slots were free, but the queue was full behind {head}"


def _last_calls(f: FunctionFigures) -> str:
    took = f"half of all took {seconds(f.latency('p50'))}, the longest {seconds(f.latency('max'))}"
    return f"tasks waited for their last calls: {took}"


def _refused(f: FunctionFigures) -> str:
    refused = things(f.count("throttled"), "call")
    return f"the service refused {refused}: it allows fewer than were made, and capacity changes nothing"


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
CAUSES: Mapping[State, Callable[[FunctionFigures], Iterator[Diagnosis]]] = {
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
