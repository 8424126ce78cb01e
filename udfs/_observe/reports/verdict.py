"""The verdict on a function: where its time went, why, and the one change that would help most.

The first rule that holds is the verdict: of `ENDS`, whatever the time went to, then of `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ..._errors.figures import amount_, per_period, seconds, share, things
from ..._errors.safe import one_line
from ..time_account import State
from .function_figures import FunctionFigures as Figures

CLEAR, NOT_CLEAR = 0.6, 0.35  # of the time: one state alone is the answer; no state is
MUCH, SOME, CLOSE = 0.5, 0.2, 0.8  # of what is looked at; a second limit; of the state that cost most
REFUSED = 0.05  # of the attempts; fewer may be those of one tenant
FEW_CALLS, SHORT_RUN, LONG_STRETCH = 50, 1.0, 10  # calls, seconds, times the longest call: less tells too little
SLOW, ALIKE, QUICK, QUICK_AT_LAST = 5, 1.25, 0.75, 0.85  # times what half of the calls took
FEW_SLOTS = 8  # a service may take no more, and the user may know
GENERATIONS = 5  # calls in each slot, from which on the first and the last are few
MOST_ROWS = 1_000_000  # in a queue that a user would want
BUSY, HEAD, END, BLOCKED = State.CALLS_BUSY, State.HEAD_OF_LINE, State.START_AND_END, State.BLOCKED_LOOP
STORED = (State.STORE, State.OUTPUT)  # what rows wait for that need no call
MADE = (BUSY, HEAD, END, State.LIMIT)  # where it matters which calls were made

Sureness = Literal["sure", "likely", "not clear"]


class Verdict(NamedTuple):
    """What limits a function."""

    state: str | None  # that cost most, by its key in `time`; None if nothing ran
    share: float  # of the tasks' time that went to it
    sureness: Sureness  # how far the figures show the cause
    text: str  # the cause and the one change, in a line


class Rule(NamedTuple):
    """A cause: whether the figures show it, what was seen and what to change, and how sure that can be."""

    holds: Callable[[Figures], Any]
    text: Callable[[Figures], str]
    sureness: Sureness = "likely"


def verdict(function: Mapping[str, Any], run_seconds: float = 0.0) -> Verdict:
    """The verdict on one function of `run.metrics`.

    If its tasks were a small part of the seconds of the run, the text says so.
    """
    f = Figures(function)
    rule = next(rule for rule in (*ENDS, *RULES) if rule.holds(f))
    state, cost, text = f.top.name.lower() if f.seconds else None, f.share(f.top), rule.text(f)
    if rule is TOO_SHORT and MUCH * run_seconds >= SHORT_RUN and f.wall < MUCH * run_seconds:
        text = (
            f"its tasks ran for {seconds(f.wall)} of the run's {seconds(run_seconds)}: the rest of the query, before "
            f"or behind it, is the limit; {things(f.calls_ended, 'call')} in so short a time tell no more"
        )
        return Verdict(state, cost, "likely", text)
    if rule in ENDS:
        return Verdict(state, cost, rule.sureness, text)
    part = f"{share(cost).removeprefix('>')} of the time"  # a line that begins with it would be a quotation
    if 0 < f.wall < MUCH * run_seconds:
        part = f"its tasks ran for {seconds(f.wall)} of the run's {seconds(run_seconds)}: {share(cost)} of that time"
    if is_close := f.share(f.second) >= CLOSE * cost:
        text += f"; {f.second.value} took {share(f.share(f.second))}"
    is_sure = rule.sureness == "sure" and cost >= CLEAR and not is_close
    return Verdict(state, cost, "not clear" if cost < NOT_CLEAR else "sure" if is_sure else "likely", f"{part} {text}")


def _without(f: Figures, state: State) -> float:
    """At most saved if no time went to this state: all slots are busy then, and no call is shorter."""
    spare = 1 - f.in_flight / f.capacity if f.capacity else 1.0
    return min(f.share(state), spare, 1 - f.latency("max") / f.wall if f.wall else 1.0)


def _is_too_short(f: Figures) -> bool:
    # Tasks of a few slow calls each tell enough: these would be made at once if they were rows of one task.
    is_split = f.share(END) >= CLEAR and not f.ran_together
    is_small = f.calls_ended < FEW_CALLS and f.seconds < LONG_STRETCH * f.latency("max") and not is_split
    is_input = f.top is State.INPUT and f.share(State.INPUT) >= CLEAR  # that tells enough, however few the calls are
    return f.seconds < SHORT_RUN or (is_small and not is_input)


def _has_begun(f: Figures) -> bool:
    """Whether a row was done, or a call has begun."""
    return bool(f.calls_ended or f.flying or any(f.count(name) for name in ("rows", "attempts", "abandoned")))


def _is_refused(f: Figures) -> bool:
    waited = f.count("refused_seconds") >= MUCH * f.time[f.top]
    return f.count("throttled") > 0 and (waited or f.part("throttled", of="attempts") >= REFUSED)


def _hangs(f: Figures) -> bool:
    """Whether calls did not come back: they are in no latency, and the figures of the others do not show them."""
    if not f.calls_ended:
        return bool(f.flying or f.count("abandoned") or f.top is BUSY)
    return f.silence > max(MUCH * f.seconds / max(1, f.tasks), LONG_STRETCH * f.latency("max"))


def _is_saturated(f: Figures) -> bool:
    """Whether nearly all short calls came first, while few were in flight, or the last calls were short.

    The first calls to end are short, and the last ones long, also where the service takes any number.
    """
    half = f.latency("p50")
    quick, first = f.calls("histogram", below=QUICK * half), f.calls("first", below=QUICK * half)
    came_first = quick >= 2 and first >= max(0.7 * quick, 0.1 * f.calls("first"))
    is_quick_at_last = 0 < f.quantile("last", 0.5) <= QUICK_AT_LAST * half
    return (came_first or is_quick_at_last) and f.calls_ended >= GENERATIONS * max(1, f.peak * f.tasks)


def _timed_out(f: Figures) -> float:
    """The part of the calls' time that went to attempts which ran into their limit."""
    limit, total = f.time_limit[1], f.calls_time
    return min(1.0, f.count("timeouts") * limit / total) if total and f.latency("max") >= 0.9 * limit else 0.0


def _queue(f: Figures) -> int:
    """Rows of a queue that does not fill up during the longest call; 0 if that is not at least twice as many as now."""
    half = min(f.latency("p50"), f.latency("mean") * (1 - f.waited))  # a row in back-off has no slot
    if not f.capacity or not f.queue_rows or not half:
        return 0
    better = min(float(f"{f.capacity * f.group_rows * f.latency('max') / half:.2g}"), MOST_ROWS)
    return int(better) if better >= 2 * f.queue_rows else 0


def _mostly(errors: Mapping[str, int]) -> str:
    """The commonest error, in brackets; nothing if there is none."""
    return f" (mostly {one_line(max(errors, key=lambda kind: errors[kind]))})" if errors else ""


def _saves(gain: float, about: str = "at most") -> str:
    return "would change little" if gain < 0.03 else f"would save {about} {share(gain)} of the time"


def _end(f: Figures) -> str:
    """What ended the job, or most of its tasks that failed, and what helps."""
    ends = f.in_vain.get("ended_by") or {"not of a call": 1}
    cause = max(ends, key=lambda cause: ends[cause])
    value, why = f.options.get(cause), ENDED_BY.get(cause, f"{one_line(cause)}: Spark's log tells more")
    shown = f"{cause}={value:_}" if type(value) in (int, float) else cause if cause in ENDED_BY else "an error"
    return f"{shown} ended the job{_mostly(f.in_vain.get('errors') or {})}; {why}"


def _waits(f: Figures, state: State) -> str:
    limit = max(f.limits, key=lambda limit: f.limits[limit], default="a permit")  # waited for longest
    seen, advice = WAITS[state]
    if state is State.LIMIT and (told := f.learned.get(limit)):
        rate = f"{amount_(told['permits'])} {one_line(told['unit'])} {per_period(told['per'])}"
        seen = f"calls waited for {{limit}}: {rate}, as the service told, is the limit"
        advice = "a higher limit of the service, or a higher at_most= if that is what it is,"
    saves = _saves(_without(f, state)) if state is not State.LIMIT or len(f.limits) < 2 else "helps until another binds"
    return f"{seen.format(limit=one_line(limit), mostly=_mostly(f.errors))}; {advice} {saves}"


def _more(f: Figures) -> str:
    more = "a larger maximum of capacity" if type(f.options.get("capacity")) is str else "twice the capacity"
    if f.capacity:
        more = f"capacity={2 * f.capacity:_}" + (f" with queue_size={2 * f.queue_rows:_}" if f.queue_rows else "")
    is_steady = not f.is_open and max(f.latency("p95"), f.latency("mean")) <= ALIKE * f.latency("min")
    if is_steady and f.capacity and f.capacity > FEW_SLOTS:
        return f"{more} {_saves(f.share(BUSY) / 2, 'about')} if the service takes so many at once and Spark keeps up"
    return f"try {more}: if calls then take longer, the service is the limit"


def _shorter(f: Figures) -> str:
    """Twice what 99% of the calls took that did not take the longest, as an option."""
    name, limit = f.time_limit if _timed_out(f) else ("attempt_timeout", f.latency("max"))
    shorter = float(f"{2 * f.quantile('histogram', 0.99, below=0.9 * limit):.2g}")
    is_shorter = 0 < shorter < min(limit, f.options.get(name) or limit) / 2
    return f"{name}={shorter:g}, twice what 99% of the others took," if is_shorter else "calls that end earlier"


def _past_the_row(f: Figures) -> str:
    is_unordered = f.options.get("output_mode") == "unordered"
    otherwise = "fewer watermarks" if is_unordered else "unordered_wait, if the order does not matter,"
    return f"queue_size={queue:_}" if (queue := _queue(f)) else otherwise


ENDED_BY = {
    "max_failures": "first look why rows fail (run.metrics has examples)",
    "max_calls": "all these calls were made, and rows are left: a higher one goes further",
    "budget": "it is spent, and rows are left: a larger one goes further",
    "quota": "run it again when the account has a quota",
    "breaker": "the service gave no answer for its max_open: run it again when the service works",
    "on_error": 'a row failed: on_error="null" or "dead_letter" keeps a task going',
}
WAITS = {  # what else sets the pace, and what helps
    State.INPUT: ("no rows came: the query or function before is the limit", "more partitions, or less work there,"),
    State.OUTPUT: ("results waited to be read: what reads them is the limit", "a faster reader, or more partitions,"),
    State.LIMIT: ("calls waited for {limit}: what you allow is the limit", "a higher one, if the service allows it,"),
    State.BREAKER: ("the circuit breaker was open: the service failed too often{mostly}", "a service that works"),
    State.STORE: ("rows waited for stored results: the store is the limit", "a faster store, or none,"),
}
TOO_SHORT = Rule(
    _is_too_short, lambda f: f"too short to tell: {things(f.calls_ended, 'call')} in {seconds(f.seconds)}", "not clear"
)
SLOTS, NO_MORE = "all slots of a task were busy", "and more capacity changes nothing"
ENDS = (
    Rule(lambda f: f.count("given_up"), _end, "sure"),
    Rule(lambda f: not f.seconds and not f.count("rows"),
         lambda f: "nothing ran: no task had a row for it, or none has reported anything yet", "not clear"),
    Rule(lambda f: f.count("unpaid"),  # with on_spent="null" or "dead_letter" it ends no job
         lambda f: f"a budget is spent: {things(f.count('unpaid'), 'row')} were not called; a larger one goes further",
         "sure"),
    Rule(lambda f: f.count("store_hits") and not f.count("calls") and (f.seconds < SHORT_RUN or f.top not in STORED),
         lambda f: f"{things(f.count('store_hits'), 'row')} came from the store, and nothing was called: no option of "
                   "the calls changes that", "sure"),
    TOO_SHORT,
    Rule(lambda f: f.top is END and not _has_begun(f),
         lambda f: f"no call has begun in {seconds(f.wall or f.seconds)}: what the function opens takes that long; "
                   "run.metrics and the log of the workers name it, and open_timeout= is its limit", "likely"),
)  # fmt: skip
RULES = (  # behind the part of the time that went to the state that cost most
    Rule(lambda f: f.top in (BUSY, HEAD, END, State.INPUT) and _hangs(f),
         lambda f: f"no call has returned for {seconds(f.silence or f.wall or f.seconds)}; "
                   f"{'a shorter ' if f.options.get('attempt_timeout') else ''}attempt_timeout= tells which"),
    Rule(lambda f: f.top in MADE and f.count("unkept_failures") >= MUCH * (f.count("rows") - f.count("store_hits")) > 0,
         lambda f: f"most calls were for rows that fail for good{_mostly(f.errors)}, and the store keeps no errors; "
                   "error_ttl= of the store spares their calls in the next run, and those of equal rows"),
    Rule(lambda f: f.top in MADE and _is_refused(f),
         lambda f: f"the service refused {things(f.count('throttled'), 'call')}: it allows fewer than were made; a "
                   "rate_limit just below what it allows, or a job_capacity if it bounds calls at once, avoids that"),
    # A process that computes has little of the processor where others have it: it may look like one that waits.
    Rule(lambda f: f.top in (BUSY, BLOCKED) and f.starved > f.processor and f.processor + f.starved >= CLOSE,
         lambda f: f"tasks waited for a free processor: other processes had them, {NO_MORE}; a machine that does less "
                   "beside, or less computing, would help"),
    Rule(lambda f: (f.top in (BUSY, BLOCKED) and f.processor >= MUCH) or (f.top is BLOCKED and f.is_plain),
         lambda f: f"a task's process computed: its processor is the limit, {NO_MORE}; more partitions on more cores, "
                   "or less computing, would help"),
    # Calls ran one after another, though there were more slots; those that run are in no mean yet. Where others went on
    # between the blocks, no figure shows what these cost.
    Rule(lambda f: f.top is BLOCKED
                   or (f.top is BUSY and f.capacity != 1 and not f.is_open and f.in_flight < 1.5 * f.share(BUSY)),
         lambda f: f"synchronous code, or a machine with too few cores, blocked the event loop: other calls waited, "
                   f"{NO_MORE}; if code waits for a service, an asynchronous client, or a plain def (which runs in "
                   f"threads), {'lets the others go on' if f.in_flight >= 1.5 else _saves(_without(f, f.top))}"),
    Rule(lambda f: f.top is BUSY and f.capacity and _is_saturated(f),
         lambda f: f"{SLOTS}, but calls were shorter while few were in flight: the service, or the client's pool, is "
                   f'the limit, {NO_MORE}; capacity="auto" finds how many calls it takes'),
    Rule(lambda f: f.top is BUSY and _timed_out(f) >= SOME,
         lambda f: f"{SLOTS}, {share(_timed_out(f))} of that with calls that ran into {f.time_limit[0]}="
                   f"{f.time_limit[1]:g}; {_shorter(f)} {_saves(f.share(BUSY) * _timed_out(f), 'about')}", "sure"),
    Rule(lambda f: f.top is BUSY and f.part("retries", of="attempts") + f.part("failures", of="rows") >= SOME,
         lambda f: f"{SLOTS}, with many calls that fail{_mostly(f.errors)}; first look why (run.metrics has examples): "
                   "more capacity may make more calls fail"),
    Rule(lambda f: f.top is BUSY and f.second in WAITS and f.share(f.second) >= SOME,
         lambda f: f"{SLOTS}, but for {share(f.share(f.second))} {_waits(f, f.second)}, and more with more capacity"),
    Rule(lambda f: f.top is BUSY, lambda f: f"{SLOTS} and calls took {seconds(f.latency('mean'))}; {_more(f)}"),
    Rule(lambda f: f.top is END
                   and f.latency("max") > max(SLOW * f.latency("p50"), MUCH * f.time[END] / max(1, f.tasks)),
         lambda f: f"tasks waited for their last calls: the longest took {seconds(f.latency('max'))}; {_shorter(f)} "
                   f"{_saves(f.share(END), 'about')}"),
    Rule(lambda f: f.top in (HEAD, END) and f.waited >= MUCH and f.options.get("retry") and not _queue(f),
         lambda f: f"rows that waited to be tried again{_mostly(f.errors)} held the task up; shorter delays of retry= "
                   f"{_saves(f.share(f.top))}"),
    Rule(lambda f: f.top is HEAD,
         lambda f: "slots were free, but the queue was full behind a slow row: half of the calls took "
                   f"{seconds(f.latency('p50'))}, the longest {seconds(f.latency('max'))}; {_past_the_row(f)} "
                   f"{_saves(_without(f, HEAD))}", "sure"),
    Rule(lambda f: f.top is END and f.ran_together,
         lambda f: "fewer rows were left than slots, or resources opened and closed; tasks ran at the same time: only "
                   "faster calls, or resources that open faster, would end them earlier", "sure"),
    Rule(lambda f: f.top is END,
         lambda f: "fewer rows were left than slots, or resources opened and closed; half as many partitions "
                   f"{_saves(f.share(END) / 2, 'about')}", "sure"),
    Rule(lambda f: f.top is State.LIMIT, lambda f: _waits(f, f.top)),  # rows that wait hide how fast they came
    Rule(lambda f: True, lambda f: _waits(f, f.top), "sure"),
)  # fmt: skip
