"""What the verdict says of figures: one sentence on the cause, and one change.

That they are right is shown by the jobs of test_verdicts_followed.
"""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._observe.reports.function_figures import FunctionFigures
from asyncudf._observe.reports.verdict import ENDS, RULES, verdict
from tests.kit.plain_figures import figures, latencies

BUSY = {"calls_busy": 9.3, "start_and_end": 0.7, "in_flight": {"mean": 18.6, "peak": 20}}
ONE_SLOW = latencies(1000, 0.05, 5.0)
NO_CALLS = latencies(0, 0.0)
UNEVEN = {**latencies(1000, 0.05), "min": 0.02}
SLOTS = "93% of the time all slots of a task were busy"
SLOW_ROW = "83% of the time slots were free, but the queue was full behind a slow row: half of the calls took 50 ms"
LAST = "66% of the time tasks waited for their last calls: the longest took 5 s; "
REFUSED = "90% of the time the service refused 80 calls: it allows fewer than were made; a rate_limit just below"
FEW = "90% of the time fewer rows were left than slots, or resources opened and closed; "
HIGHER = ": what you allow is the limit; a higher one, if the service allows it, "


def failed(**ended_by: int) -> dict[str, Any]:
    """Failed attempts, and what ended them."""
    return {"seconds": 90.0, "calls": 311, "errors": {"ValueError": 2}, "ended_by": ended_by}


def of_a_limit(**options: Any) -> dict[str, Any]:
    seconds = options.pop("seconds", {})
    return figures(
        limit=9.0, calls_busy=1.0, in_flight={"mean": 2.0, "peak": 20}, options=options, limit_seconds=seconds
    )


TEXTS: list[tuple[dict[str, Any], str]] = [
    # What the time went to does not matter.
    (figures(**BUSY, given_up=1, options={"max_calls": 1400}, failed_attempts=failed(max_calls=1)),
     "max_calls=1_400 ended the job (mostly ValueError); all these calls were made, and rows are left: a higher one"),
    (figures(**BUSY, given_up=1), "an error ended the job; not of a call: Spark's log tells more"),
    (figures(seconds=0, latency=NO_CALLS), "nothing ran: no task had a row for it, or none has reported anything yet"),
    (figures(**BUSY, rows=1000, unpaid=499), "a budget is spent: 499 rows were not called; a larger one goes further"),
    (figures(calls_busy=9.0, store_hits=1000, latency=NO_CALLS), "1,000 rows came from the store, and nothing was"),
    (figures(calls_busy=9.0, input=1.0, latency=latencies(49, 1.5)), "too short to tell: 49 calls in 10 s"),
    (figures(calls_busy=0.9, latency=latencies(5000, 0.001)), "too short to tell: 5,000 calls in 900 ms"),
    (figures(start_and_end=45.0, latency=NO_CALLS),
     "no call has begun in 45 s: what the function opens takes that long; run.metrics and the log of the workers name"),
    (figures(input=40.0, calls_busy=4.0, latency=latencies(10, 5.0)), "91% of the time no rows came: the query or fun"),
    (figures(start_and_end=39.9, input=0.1, latency=latencies(8, 5.0), tasks={"succeeded": 8}, ended=20.0),
     "99.8% of the time fewer rows were left than slots, or resources opened and closed; half as many partitions"),
    # All slots had a call, or the loop was blocked.
    (figures(calls_busy=600.0, latency=NO_CALLS), "100% of the time no call has returned for 10 min; attempt_timeout="),
    (figures(**BUSY, unkept_failures=800, store_misses=1000, errors={"ValueError": 900}),
     "93% of the time most calls were for rows that fail for good (mostly ValueError), and the store keeps no errors"),
    (figures(calls_busy=10.0, processor_seconds=9.0, in_flight={"mean": 19.0, "peak": 20}),
     "100% of the time a task's process computed: its processor is the limit, and more capacity changes nothing; more"),
    (figures(calls_busy=10.0, processor_seconds=3.7, starved_seconds=6.0, in_flight={"mean": 19.0, "peak": 20}),
     "100% of the time tasks waited for a free processor: other processes had them, and more capacity changes nothing"),
    (figures(**BUSY, processor_seconds=1.0, starved_seconds=4.0), f"{SLOTS} and calls took 50 ms; capacity=40 would"),
    (figures(blocked_loop=9.0, input=1.0, options={"kind": "def"}),
     "90% of the time a task's process computed: its processor is the limit, and more capacity changes nothing; more"),
    (figures(blocked_loop=9.0, input=1.0, in_flight={"mean": 1.0, "peak": 1}),
     ("90% of the time synchronous code, or a machine with too few cores, blocked the event loop: ... "
      "an asynchronous client ... save at most 90%")),
    (figures(**BUSY, latency={**latencies(1000, 0.25), "last": [[0.15, 12], [0.25, 8]]}),
     f"{SLOTS}, but calls were shorter while few were in flight: the service, or the client's pool, is the limit, and"),
    (figures(calls_busy=93, input=7, latency=latencies(1000, 0.05, 10.0, slow=180), timeouts=180,
             options={"timeout": 10.0}, in_flight={"mean": 18.4, "peak": 20}),
     f"{SLOTS}, 98% of that with calls that ran into timeout=10; timeout=0.1, ... would save about 91%"),
    (figures(calls_busy=93, input=7, latency=latencies(1000, 10.0), timeouts=1000, options={"attempt_timeout": 10.0},
             in_flight={"mean": 18.4, "peak": 20}),
     f"{SLOTS}, 100% of that with calls that ran into attempt_timeout=10; calls that end earlier would save about 93%"),
    (figures(**BUSY, retries=500, errors={"ConnectionError": 400, "ValueError": 100}),
     f"{SLOTS}, with many calls that fail (mostly ConnectionError); first look why (run.metrics has examples): more"),
    (figures(calls_busy=6.0, limit=4.0, limit_seconds={"RateLimit(20)": 4.0}, in_flight={"mean": 15, "peak": 20}),
     "60% of the time all slots of a task were busy, but for 40% calls waited for RateLimit(20) ... save at most 25%"),
    (figures(**BUSY), f"{SLOTS} and calls took 50 ms; capacity=40 would save about 46% of the time if the service"),
    (figures(**BUSY, latency=UNEVEN), f"{SLOTS} and calls took 50 ms; try capacity=40: if calls then take longer, the"),
    (figures(**BUSY, abandoned=1), f"{SLOTS} and calls took 50 ms; try capacity=40: if calls then take longer, the"),
    (figures(**BUSY, options={"queue_size": 30}), f"{SLOTS} and calls took 50 ms; capacity=40 with queue_size=60"),
    (figures(**BUSY, options={"capacity": None}), f"{SLOTS} and calls took 50 ms; try twice the capacity: if calls"),
    (figures(**BUSY, options={"capacity": "auto"}), f"{SLOTS} and calls took 50 ms; try a larger maximum of capacity"),
    # Slots were free: slow calls, and the rows behind them.
    (figures(start_and_end=4.9, calls_busy=2.5, latency=ONE_SLOW),
     LAST + "attempt_timeout=0.1, twice what 99% of the others took, would save about 66% of the time"),
    (figures(start_and_end=4.9, calls_busy=2.5, latency=ONE_SLOW, options={"attempt_timeout": 0.1}),
     LAST + "calls that end earlier would save about 66% of the time"),
    (figures(start_and_end=9.0, calls_busy=1.0, latency=latencies(100, 0.5), waited=40.0, options={"retry": "given"}),
     "90% of the time rows that waited to be tried again held the task up; shorter delays of retry= would save"),
    (figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"queue_size": 40}),
     f"{SLOW_ROW}, the longest 5 s; queue_size=2_000 would save at most 83% of the time"),
    (figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"queue_size": 2000}),
     f"{SLOW_ROW}, the longest 5 s; unordered_wait, if the order does not matter, would save at most 83% of the time"),
    (figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"output_mode": "unordered"}),
     f"{SLOW_ROW}, the longest 5 s; fewer watermarks would save at most 83% of the time"),
    (figures(start_and_end=9.0, calls_busy=1.0, rows=100, tasks={"succeeded": 20}, ended=5.0),
     FEW + "half as many partitions would save about 45% of the time"),
    (figures(start_and_end=9.0, calls_busy=1.0, rows=100, tasks={"succeeded": 20}, ended=0.5),
     FEW + "tasks ran at the same time: only faster calls, or resources that open faster, would end them earlier"),
    # Something else sets the pace.
    (figures(limit=9.0, calls_busy=1.0, throttled=80), REFUSED),
    (of_a_limit(seconds={"max_calls": 0.1}), "90% of the time calls waited for max_calls" + HIGHER + "would save at"),
    (of_a_limit(), "90% of the time calls waited for a permit" + HIGHER + "would save at"),
    (of_a_limit(job_capacity=40, seconds={"RateLimit(20)": 5.0, "job_capacity": 4.0}),
     "90% of the time calls waited for RateLimit(20)" + HIGHER + "helps until another binds"),
    (figures(input=9.0, calls_busy=1.0, in_flight={"mean": 15.0, "peak": 20}),
     "90% of the time no rows came: the query or function before is ... would save at most 25% of the time"),
    (figures(input=5.2, output=4.8),
     "52% of the time no rows came: the query or function before is ... at most 52% of the time; output took 48%"),
    (figures(store=9.0, calls_busy=1.0), "90% of the time rows waited for stored results: the store is the limit; a"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "told"), TEXTS, ids=[told[:80] for _, told in TEXTS])
def test_the_verdict_tells_the_cause_and_the_change(function: dict[str, Any], told: str) -> None:
    text = verdict(function).text
    first, *others = told.split(" ... ")
    assert text.startswith(first)
    assert [part for part in others if part not in text] == []
    assert "\n" not in text


@pytest.mark.parametrize("state", ["input", "calls_busy"])
def test_tasks_that_were_a_small_part_of_a_run_are_not_its_limit(state: str) -> None:
    """400 tiny rows behind a shuffle that takes 8 s: "too short to tell" said nothing of these."""
    short = figures(**{state: 0.4}, latency=latencies(400, 0.002), ended=0.2)
    text = "its tasks ran for 200 ms of the run's 7.8 s: the rest of the query, before or behind it, is the limit; "
    assert verdict(short, 7.8).text.startswith(text)
    assert verdict(short, 0.3).text == verdict(short).text == "too short to tell: 400 calls in 400 ms"


def test_every_rule_is_tested() -> None:
    rules = (*ENDS, *RULES)
    held = {next(n for n, rule in enumerate(rules) if rule.holds(FunctionFigures(function))) for function, _ in TEXTS}
    assert held == {*range(len(rules))}


# What an advice is not given with: it is set already.
NOT_GIVEN = [
    ("attempt_timeout=0.1", "attempt_timeout", 0.1),
    ("queue_size=2_000", "queue_size", 2000),
    ("unordered_wait", "output_mode", "unordered"),
]


@pytest.mark.parametrize(("advice", "option", "value"), NOT_GIVEN)
def test_no_advice_is_what_is_set_already(advice: str, option: str, value: Any) -> None:
    advised = [function for function, told in TEXTS if advice in told]
    assert advised
    for function in advised:
        assert advice not in verdict({**function, "options": {**function["options"], option: value}}).text
