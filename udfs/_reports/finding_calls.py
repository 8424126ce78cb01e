"""Findings for time that the calls themselves take, and the rows behind them."""

from __future__ import annotations

import math

from .._metrics.time_account import State
from .._text.figures import count, number, seconds, share
from .finding import (
    MANY_TIMEOUTS,
    MUCH_WAITING,
    SLOW,
    Finding,
    mostly,
    of_slow_calls,
    of_timeouts,
    saves,
    saves_at_most,
)
from .reading import Reading, rounded_up

__all__ = ("blocked_loop", "calls_busy", "head_of_line")


MANY_RETRIES = 0.2  # of the attempts
BUSY_THREAD = 4000  # calls a second in one task: a request takes 0.1 ms of CPU or more, so twice as many fill a thread
NO_WAIT = 1e-3  # seconds; what takes less hardly waits for a service
MOST_ROWS = 1_000_000  # in a queue that anybody would want
TOO_LITTLE = 0.1  # of the time: another change is looked for
SOME = 0.01  # of the time
ROOM = 10  # times as many rows as slots in a queue that hardly any slow call fills


def calls_busy(reading: Reading) -> Finding:
    """While all slots are in use, twice as many make twice as many calls: time * (1 - busy / 2).

    Not so where slots are not what is missing: calls that never wait, or that one thread cannot begin fast enough.
    """
    busy, slots = reading.share(State.CALLS_BUSY), reading.slots
    if slots is not None and _are_slots_free(reading, slots):
        return _one_thread(reading, slots)
    if slots is not None and slots < (reading.capacity or 0):
        return _small_queue(reading, slots)
    seen = _all(slots)
    if reading.timed_out >= MANY_TIMEOUTS:
        seen += f", {share(reading.timed_out)} of that with calls that ran into {reading.limit_text}"
        return of_timeouts(reading, seen, busy * reading.timed_out)
    if reading.retried >= MANY_RETRIES:
        # An attempt in vain holds a slot as any other: the same calls in (1 - retried) of the attempts.
        gain = busy * reading.retried
        retried = f"{share(reading.retried)} of the attempts were retries{mostly(reading.errors)}"
        return Finding(
            f"{seen}, and {retried}: what fails is the limit",
            f"without retries the time would be about {share(gain)} less; more capacity may make more calls fail",
            gain,
            is_sure=False,  # failed attempts may take less time than others
        )
    return _all_busy(reading, seen, busy / 2)


def _all(slots: int | None) -> str:
    if slots == 1:
        return "the only slot of a task was busy"
    return f"all {'' if slots is None else count(slots) + ' '}slots of a task were busy"


def _all_busy(reading: Reading, seen: str, gain: float) -> Finding:
    if reading.finds_capacity:
        return _as_many_as_found(reading)
    is_fast = reading.calls_ended > BUSY_THREAD * reading.time[State.CALLS_BUSY]
    limit = "the service, capacity or a task's one thread" if is_fast else "the service or capacity"
    who = "the service and the CPU" if is_fast else "the service"
    return Finding(
        f"{seen} and calls took {seconds(reading.latency('mean'))}: {limit} is the limit",
        f"{_twice(reading)} would {saves(gain)} if {who} can take it and Spark keeps up",
        gain,
        is_sure=not is_fast and not _waits_for_spark(reading),
    )


def _as_many_as_found(reading: Reading) -> Finding:
    flying = f"{number(reading.in_flight)} in the mean of a task, {count(reading.peak)} at most"
    return Finding(
        f"as many calls were in flight as the service was found to take ({flying}), and they took "
        f"{seconds(reading.latency('mean'))}: the service is the limit",
        "a larger maximum of capacity helps only if it was reached",
        is_sure=False,
    )


def _waits_for_spark(reading: Reading) -> bool:
    """Whether it does sometimes: with more slots it would more often."""
    return reading.share(State.INPUT) + reading.share(State.OUTPUT) > SOME


def _twice(reading: Reading) -> str:
    if reading.capacity is None:
        return "twice the capacity"
    # A small queue grows with the slots: else it would soon be full behind the slower calls.
    given, rows = reading.options.get("queue_size"), reading.queue_rows or 0
    is_small = given and rows < ROOM * 2 * reading.capacity * reading.batch_rows
    return f"capacity={2 * reading.capacity:_}" + (f" with queue_size={2 * rows:_}" if is_small else "")


def _small_queue(reading: Reading, slots: int) -> Finding:
    capacity = reading.capacity or slots
    gain = reading.share(State.CALLS_BUSY) * (1 - slots / capacity)
    calls = "1 call" if slots == 1 else f"{count(slots)} calls"
    change = f"queue_size={capacity * reading.batch_rows:_} would {saves(gain)}"
    return Finding(
        f"{calls} filled the queue of {count(reading.queue_rows)} rows, with {count(capacity)} slots for calls",
        f"{change} if the service can take it and Spark keeps up",
        gain,
        is_sure=not _waits_for_spark(reading),
    )


def _are_slots_free(reading: Reading, slots: int) -> bool:
    """Whether calls that are begun without a pause leave most of the slots free."""
    return _in_flight_when_busy(reading) < slots / 2 or reading.peak <= 1 < slots


def _in_flight_when_busy(reading: Reading) -> float:
    """How many calls at most were in flight while all slots seemed to be."""
    # Calls that were given up, or still go on, are in no latency: of these only the peak is known.
    is_complete = not (reading.plain.get("tasks") or {}).get("running") and not reading.count("abandoned")
    mean = reading.in_flight / max(reading.share(State.CALLS_BUSY), 1e-9)
    return min(mean, reading.peak) if is_complete else reading.peak


def _one_thread(reading: Reading, slots: int) -> Finding:
    latency, flying = reading.latency("mean"), _in_flight_when_busy(reading)
    twice = "twice the partitions on twice the cores would about halve the time"
    half = reading.share(State.CALLS_BUSY) / 2
    if flying >= 1.5:
        seen = f"calls were begun without a pause, and still only {number(flying)} of {count(slots)} slots were in use"
        return Finding(f"{seen}: a task's one thread is the limit, and capacity changes nothing", twice, half, False)
    seen = f"calls ran one after another, {seconds(latency)} each: they never give way, and capacity changes nothing"
    if latency < NO_WAIT:
        return Finding(seen, twice, half)
    gain = reading.at_most(State.CALLS_BUSY)
    return Finding(seen, _not_to_block(gain), gain)


def head_of_line(reading: Reading) -> Finding:
    """At most the time behind slow rows is saved, never more than until the longest call is over."""
    gain = reading.beyond_longest_call(State.HEAD_OF_LINE)
    half, longest = reading.latency("p50"), reading.latency("max")
    is_sure = longest >= SLOW * half or _is_full_of_waiting(reading)
    seen = f"slots were free, but the queue was full behind {_head(reading)}"
    if gain >= TOO_LITTLE and (rows := _better_queue(reading)) is not None:
        return Finding(seen, f"queue_size={rows:_} would {saves_at_most(gain)}", gain, is_sure)
    if _is_full_of_waiting(reading):  # in any order: rows in back-off keep their places
        gain = reading.at_most(State.HEAD_OF_LINE)
        return Finding(seen, f"shorter delays of retry= would {saves_at_most(gain)}", gain, is_sure)
    if gain < TOO_LITTLE:  # the slow calls themselves are most of the time
        return of_slow_calls(reading, seen, reading.share(State.HEAD_OF_LINE))
    if reading.options.get("output_mode") == "unordered":
        return Finding(seen, f"fewer watermarks, or a shorter timeout, would {saves_at_most(gain)}", gain, is_sure)
    change = f"unordered_wait, if the order of results does not matter, would {saves_at_most(gain)}"
    return Finding(seen, change, gain, is_sure)


def _head(reading: Reading) -> str:
    if _is_full_of_bytes(reading):
        return f"a slow row, with max_buffered_bytes={reading.options['max_buffered_bytes']:_} of results"
    if _is_full_of_waiting(reading):
        return f"rows that waited to be tried again{mostly(reading.errors)}"
    half, longest = seconds(reading.latency("p50")), seconds(reading.latency("max"))
    return f"a slow row: half of the calls took {half}, the longest {longest}"


def _better_queue(reading: Reading) -> int | None:
    """Rows of a queue that does not fill up during the longest call, or as many as one would have.

    None if that is not at least twice as many as now: a little more is no answer.
    """
    half = min(reading.latency("p50"), reading.in_slot)  # in back-off a row has a place in the queue, and no slot
    if reading.slots is None or reading.queue_rows is None or not half or _is_full_of_bytes(reading):
        return None
    ratio = min(reading.latency("max") / half, MOST_ROWS)
    enough = math.ceil(rounded_up(reading.slots * reading.batch_rows * ratio))
    most = min(max(10 * reading.queue_rows, reading.usual_queue_rows or 0), MOST_ROWS)
    better = min(enough, most)
    return better if better >= 2 * reading.queue_rows else None


def _is_full_of_bytes(reading: Reading) -> bool:
    limit = reading.options.get("max_buffered_bytes")
    is_near = type(limit) is int and reading.count("bytes_peak") >= 0.9 * limit
    return is_near and reading.queued_peak < 0.9 * (reading.queue_rows or math.inf)


def _is_full_of_waiting(reading: Reading) -> bool:
    return reading.waited >= MUCH_WAITING and not _is_full_of_bytes(reading)


def blocked_loop(reading: Reading) -> Finding:
    """While one call blocks no other goes on: at most all but what the slots would take together is saved."""
    gain = reading.at_most(State.BLOCKED_LOOP)
    blocked = seconds(reading.time[State.BLOCKED_LOOP])
    return Finding(
        f"({blocked}) synchronous code kept the event loop from everything else: no other call could go on",
        _not_to_block(gain),
        gain,
        is_sure=reading.peak <= 1,  # threads that compute keep the loop from its turn as well
    )


def _not_to_block(gain: float) -> str:
    return (
        "if a service is waited for, an asynchronous client, or a plain def (which runs in threads), would "
        f"{saves_at_most(gain)}; for computing only more cores help"
    )
