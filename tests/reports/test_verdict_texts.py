"""The verdict says in one line what limits a function, and one change with what it would save.

Tested are the facts that a reader needs: the cause, every figure, and each option that is named. How the sentence puts
them is free.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from asyncudf._observe.reports.verdict import verdict
from tests.kit.plain_figures import figures, latencies, task

BUSY = {"calls_busy": 9.3, "winding_down": 0.7, "in_flight": {"mean": 18.6, "peak": 20}}
ONE_SLOW = latencies(1000, 0.05, 5.0)

# The figures of a function; the state that cost most; the facts that the text has to tell, between bars. What the jobs
# of test_verdicts_followed are told is not here again.
Case = tuple[dict[str, Any], str | None, str]


def one_long_task(short: list[Any], long: Any, *why: str, **others: Any) -> Case:
    """Ten tasks of 5 s and one of a minute, during most of which nothing arrives; and the reason."""
    function = figures(
        input=60.0,
        calls_busy=50.0,
        tasks={"succeeded": 11},
        ended=70.0,
        in_flight={"mean": 10, "peak": 20},
        per_task=[*short, long],
        **others,
    )
    facts = "55% | input | one task of 11 | 1 min | 5 s | at most 71% | calls busy | 45%"
    return function, "input", " | ".join([facts, *why])


VERDICTS: dict[str, Case] = {
    "capacity": (
        figures(**BUSY, latency=latencies(1000, 0.048)),
        "calls_busy", "93% | 20 slots | 48 ms | the service | capacity=40 | take longer"),
    "capacity of a small queue": (
        figures(**BUSY, options={"queue_size": 30}),
        "calls_busy", "93% | 20 slots | 50 ms | capacity=40 | queue_size=60"),
    "capacity, and Spark is not much faster": (
        figures(calls_busy=9.0, output=1.0, in_flight={"mean": 18.5, "peak": 20}),
        "calls_busy", "90% | 20 slots | 50 ms | capacity=40"),
    "capacity that is not known": (
        figures(**BUSY, options={"capacity": None}), "calls_busy", "93% | 50 ms | twice the capacity"),
    "one slot": (
        figures(calls_busy=9.0, input=1.0, options={"capacity": 1}, in_flight={"mean": 0.9, "peak": 1}),
        "calls_busy", "90% | only slot | 50 ms | capacity=2"),
    "calls that were quicker at first": (
        figures(**BUSY, latency={**latencies(1000, 0.25), "histogram": [[0.05, 4], [0.1, 4], [0.25, 992]],
            "first": [[0.05, 4], [0.1, 4], [0.25, 12]], "last": [[0.25, 20]]}),
        "calls_busy", "93% | 20 slots | 50 ms | 250 ms | the service | pool | about 4 at once | capacity=8"),
    "calls that were quicker at last": (
        figures(**BUSY, latency={**latencies(1000, 0.25), "first": [[0.25, 20]], "last": [[0.15, 12], [0.25, 8]]}),
        "calls_busy", "93% | 20 slots | 150 ms | 250 ms | the service | slower with more calls | a lower capacity"),
    "calls that were quicker at last, and a machine at its limit": (
        figures(**BUSY, processor_seconds=3.4, latency={**latencies(1000, 0.068), "first": [[0.068, 20]],
            "last": [[0.051, 12], [0.068, 8]]}),
        "calls_busy",
        "93% | 20 slots | 51 ms | 68 ms | the service | pool | or this machine | 34% | slower with more calls"),
    "full slots, and blocks": (
        figures(calls_busy=6.4, blocked_loop=3.4, input=0.2, in_flight={"mean": 18.6, "peak": 20}),
        "calls_busy", "64% of the time all 20 slots | for 34%  | event loop | asynchronous client | plain def | cores"),
    "computing": (
        figures(calls_busy=10.0, processor_seconds=9.0, in_flight={"mean": 19.0, "peak": 20}),
        "calls_busy", "100% | computed for 90% | processor | more partitions"),
    "nothing but hits, of a long run": (
        figures(store=10.0, latency=latencies(0, 0.0), store_hits=2_000_000, processor_seconds=9.0,
            in_flight={"mean": 0.0, "peak": 0}),
        "store", "100% | 2,000,000 of 2,000,000 rows | store | a processor 90% | more partitions | cores"),
    "retries": (
        figures(**BUSY, retries=500, errors={"ConnectionError": 400, "ValueError": 100}),
        "calls_busy", "93% | 20 slots | 33% | retries | ConnectionError | about 31%"),
    "timeouts": (
        figures(calls_busy=93, input=7, latency=latencies(1000, 0.05, 10.0, slow=180), timeouts=180,
            options={"timeout": 10.0}, in_flight={"mean": 18.4, "peak": 20}),
        "calls_busy", "93% | 20 slots | 98% | timeout=10 | timeout=0.1 | 99% of the others | at most 90%"),
    "refusals": (
        figures(limit=9.0, calls_busy=1.0, throttled=12, refused_seconds=8.0, in_flight={"mean": 2.0, "peak": 20}),
        "limit", "90% | the service refused 12 calls | rate_limit | job_capacity"),
    "nothing but timeouts": (
        figures(calls_busy=93, input=7, latency=latencies(1000, 10.0), timeouts=1000,
            options={"attempt_timeout": 10.0}, in_flight={"mean": 18.4, "peak": 20}),
        "calls_busy", "93% | 20 slots | 100% | attempt_timeout=10 | service | at most 93%"),
    "calls that never wait": (
        figures(calls_busy=10.0, latency=latencies(1000_000, 1e-5), in_flight={"mean": 1.0, "peak": 20}),
        "calls_busy", "100% | 1 of 20 slots | 10 µs | one thread | more partitions | cores"),
    "one thread": (
        figures(calls_busy=10.0, latency=latencies(60_000, 0.001), in_flight={"mean": 6.0, "peak": 20}),
        "calls_busy", "100% | 6 of 20 slots | 1 ms | one thread | more partitions | cores"),
    "a slow head": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, in_flight={"mean": 2.0, "peak": 20}),
        "head_of_line", "83% | slow row | 50 ms | the longest 5 s | unordered_wait | at most 83%"),
    "a slow head before a queue that is large enough for most calls": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"queue_size": 1500}),
        "head_of_line", "83% | slow row | 50 ms | the longest 5 s | unordered_wait | at most 83%"),
    "a slow head that is most of the time": (
        figures(head_of_line=4.9, calls_busy=0.2, latency=ONE_SLOW, in_flight={"mean": 10.0, "peak": 20},
            per_task=[task(5.1, longest=5.0, head_of_line=4.9)]),
        "head_of_line", "96% | slow row | 50 ms | the longest 5 s | attempt_timeout=0.15 | retry= | at most 54%"),
    "a slow head between watermarks": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"output_mode": "unordered"}),
        "head_of_line", "83% | slow row | 50 ms | the longest 5 s | fewer watermarks | shorter timeout | at most 83%"),
    "large results behind a slow head": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, bytes_peak=1000,
            options={"max_buffered_bytes": 1001}),
        "head_of_line", "83% | slow row | max_buffered_bytes=1_001 | unordered_wait | at most 83%"),
    "the calls take nearly as long as the input": (
        figures(input=9.0, calls_busy=1.0, in_flight={"mean": 15.0, "peak": 20}),
        "input", "90% | the query before the function | more partitions | at most 25%"),
    "an operator without rows": (
        figures(input=9.0, calls_busy=1.0, entry_point="operator"),
        "input", "90% | no rows | Spark | the previous function | at most 75%"),
    "the query after the function": (
        figures(output=9.0, calls_busy=1.0, in_flight={"mean": 2.0, "peak": 20}),
        "output", "90% | the query after the function | faster reader | more partitions | at most 90%"),
    "permits": (
        figures(limit=9.0, calls_busy=1.0, options={"rate_limit": "RateLimit(50)"}, in_flight={"mean": 2.0,
            "peak": 20}),
        "limit", "90% | permit | rate_limit | at most 90%"),
    "a share of the calls of the job": (
        figures(limit=9.0, calls_busy=1.0, options={"job_capacity": 40}, in_flight={"mean": 2.0, "peak": 20}),
        "limit", "90% | job_capacity=40 | a higher job_capacity | at most 90%"),
    "a rate and a number of calls, as tight": (
        figures(limit=9.0, calls_busy=1.0, options={"job_capacity": 40, "rate_limit": "RateLimit(20)"},
            limit_seconds={"RateLimit(20)": 5.0, "job_capacity": 4.0}),
        "limit", "90% | 56% of that for RateLimit(20) | 44% for job_capacity=40 | these are the limit | higher ones"),
    "three limits": (
        figures(limit=9.0, calls_busy=1.0, options={"job_capacity": 40,
            "rate_limit": "RateLimit(20), RateLimit(9_000, per=3600)"}, limit_seconds={"RateLimit(20)": 0.0,
            "RateLimit(9_000, per=3600)": 0.0, "job_capacity": 9.0}),
        "limit", "90% | 100% of that for job_capacity=40 | a higher one | until another of them is the limit"),
    "full slots, and one of two limits": (
        figures(calls_busy=6.0, limit=4.0, options={"job_capacity": 40, "rate_limit": "RateLimit(20)"},
            limit_seconds={"RateLimit(20)": 4.0, "job_capacity": 0.0}, in_flight={"mean": 15, "peak": 20}),
        "calls_busy", "60% | all 20 slots | for 40%  | a permit | a higher RateLimit(20) | at most 25%"),
    "refusals, though there are limits": (
        figures(limit=9.0, calls_busy=1.0, throttled=80, options={"job_capacity": 40, "rate_limit": "RateLimit(20)"},
            limit_seconds={"RateLimit(20)": 4.0, "job_capacity": 0.0}),
        "limit", "90% | RateLimit(20) | 80 calls | a lower rate_limit | a lower job_capacity"),
    "tasks of one slow call each": (
        figures(winding_down=39.9, input=0.1, latency=latencies(8, 5.0), tasks={"succeeded": 8, "stopped": 0,
            "running": 0, "failed": 0, "lost": 0}, ended=20.0),
        "winding_down", "99.8% | a task had 1 row for 20 slots | half as many partitions would about halve"),
    "a few refusals, though there is a limit": (
        figures(limit=9.0, calls_busy=1.0, throttled=12, options={"rate_limit": "RateLimit(20)"}),
        "limit", "90% | 12 calls of 1,000 were refused, and made again | a higher rate_limit | at most 75%"),
    "a capacity that is found out": (
        figures(calls_busy=10.0, options={"capacity": "auto"}, in_flight={"mean": 12.0, "peak": 31}),
        "calls_busy", "100% | 12 per task on average | 31 at most | 50 ms | the service | maximum of capacity"),
    "a store": (
        figures(store=9.0, calls_busy=1.0, store_hits=9000, store_misses=1000, in_flight={"mean": 2.0, "peak": 20}),
        "store", "90% | stored results | 9,000 of 10,000 rows | faster store | ResultStore.disk | at most 90%"),
    "a store on a disk": (
        figures(store=9.0, calls_busy=1.0, store_hits=9000, store_misses=1000, in_flight={"mean": 2.0, "peak": 20},
            options={"store": "ResultStore.disk(ttl=60)"}),
        "store", "90% | stored results | 9,000 of 10,000 rows | a faster disk | at most 90%"),
    "many slow calls": (
        figures(winding_down=4.9, calls_busy=2.5, latency=latencies(1000, 0.05, 5.0, slow=100)),
        "winding_down", "66% | last calls | 50 ms | the longest 5 s | at most 66%"),
    "small partitions": (
        figures(winding_down=9.0, calls_busy=1.0, rows=100, tasks={"succeeded": 20}, ended=5.0),
        "winding_down", "90% | 5 rows for 20 slots | half as many partitions | halve the time"),
    "small partitions, and a slow call in one of them": (
        figures(winding_down=9.0, calls_busy=1.0, rows=200, tasks={"succeeded": 20}, ended=5.0, latency=latencies(200,
            0.4, 2.5), per_task=[*[task(0.4, longest=0.4, winding_down=0.4)] * 19, task(2.5, longest=2.5,
            winding_down=2.4)]),
        "winding_down", "90% | 10 rows for 20 slots | half as many partitions | halve the time"),
    "small partitions, all at once": (
        figures(winding_down=9.0, calls_busy=1.0, rows=100, tasks={"succeeded": 20}, ended=0.5),
        "winding_down", "90% | 5 rows for 20 slots | the same time | not end earlier"),
    "a resource that takes long to open": (
        figures(winding_down=9.0, calls_busy=3.0, tasks={"succeeded": 4}, ended=6.0, per_task=[task(3.0, longest=0.1,
            winding_down=2.25)] * 4),
        "winding_down", "75% | resources | 2.1 s | half as many partitions | about 36%"),
    "short tasks": (
        figures(winding_down=6.0, calls_busy=4.0, rows=2000, tasks={"succeeded": 20}, ended=5.0),
        "winding_down", "60% | fewer rows | half as many partitions | about 30%"),
    "back-off at the end": (
        figures(winding_down=9.0, calls_busy=1.0, latency=latencies(100, 0.5), retries=100, waited=40.0,
            options={"retry": "given"}, in_flight={"mean": 1, "peak": 20}),
        "winding_down", "90% | last of the rows | tried again | shorter delays | retry= | at most 72%"),
    "rows at the head that the service has refused": (
        figures(head_of_line=9.0, calls_busy=1.0, latency=latencies(100, 0.5), retries=100, throttled=100,
            errors={"ThrottledError": 100}, waited=40.0, options={"rate_limit": "RateLimit(20)"},
            in_flight={"mean": 1, "peak": 20}),
        "head_of_line",
        "90% | the queue was full | the service had refused | ThrottledError | a lower rate_limit | job_capacity"),
    "rows that fail for good, with a store": (
        figures(**BUSY, failures=900, unkept_failures=800, store_misses=1000, errors={"ValueError": 900}),
        "calls_busy",
        "93% | 20 slots | 80% | failed for good | ValueError | keeps no errors | error_ttl= of the store"),
    "threads that keep the loop busy": (
        figures(blocked_loop=9.0, input=1.0, options={"kind": "def"}, in_flight={"mean": 9.0, "peak": 20}),
        "blocked_loop", "90% | 9 s | synchronous code | calls waited for it | more partitions | cores"),
    "skew": one_long_task([task(5.0, rows=500)] * 10, task(60.0, rows=15_000), "15,000 of 20,000 rows", "equal size",
        rows=20_000),
    "skew, and fewer cores than tasks": (
        figures(calls_busy=22.0, rows=2200, tasks={"succeeded": 6}, ended=20.5, per_task=[*({**task(0.5, rows=50),
            "began": 0.5 * n} for n in range(5)), task(19.5, rows=1950)]),
        "calls_busy",
        "100% | calls busy | one task of 6 | 20 s | 500 ms | 1,950 of 2,200 rows | equal size | at most 41%"),
    "a slow host": one_long_task([task(5.0)] * 10, task(60.0), "no more rows", "partition 0"),
    "two that cost about the same": (
        figures(input=5.2, output=4.8, in_flight={"mean": 2.0, "peak": 20}),
        "input", "52% | the query before the function | at most 52% | output | 48%"),
    "too few calls": (
        figures(calls_busy=9.0, input=1.0, latency=latencies(49, 1.5)),
        "calls_busy", "too short | 49 calls | 10 s | 90%"),
    "too short": (
        figures(calls_busy=0.9, latency=latencies(5000, 0.001)),
        "calls_busy", "too short | 5,000 calls | 900 ms | 100%"),
    "nothing": (figures(seconds=0, latency=latencies(0, 0.0)), None, "nothing ran"),
}  # fmt: skip


def figures_in(text: str) -> set[str]:
    """Every number with its unit: `93%`, `48 ms`, `2_000`."""
    return set(re.findall(r"\d(?:[\d,_.]*\d)?(?:%| (?:min|ms|µs|s)\b)?", text))


def options_in(text: str) -> set[str]:
    """Every name of an option or a function: `retry=`, `rate_limit`, `unordered_wait`."""
    return set(re.findall(r"\b[a-z]+(?:_[a-z]+)+|\b[a-z]+(?==)", text))


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict_tells_the_cause_the_figures_and_the_change(case: str) -> None:
    function, state, told = VERDICTS[case]
    facts = told.split(" | ")
    found = verdict(function)
    assert found.state == state
    assert [fact for fact in facts if fact not in found.text] == [], found.text
    assert figures_in(found.text) == figures_in("; ".join(facts))
    assert options_in(found.text) == options_in("; ".join(facts))
    assert len(found.text) <= 300
    assert "\n" not in found.text


def failed(seconds: float, calls: int, error: str = "", by: str = "", ended: int = 2) -> dict[str, Any]:
    """Failed attempts that took so long, and what ended them."""
    kinds, causes = ({name: ended} if name else {} for name in (error, by))
    return {"seconds": seconds, "calls": calls, "errors": kinds, "ended_by": causes}


TWO_FAILED = {**BUSY, "tasks": {"succeeded": 1, "failed": 2}}
LITTLE = {"calls_busy": 0.5, "tasks": {"succeeded": 1, "failed": 3}}
# What was done in vain, and what is said of it, with what keeps it from being so, if an option does.
FAILED = {
    "failed attempts": (
        figures(**TWO_FAILED, failed_attempts=failed(90.0, 311, "ValueError", "on_error")),
        ("93% of the time went to calls busy, but 2 task attempts failed and took 90% of all time: 311 calls were made "
         "in vain; a row that failed ended them (mostly ValueError); "
         'on_error="null" or "dead_letter" keeps a task going when a row fails')),
    "failed attempts, though rows that fail are no reason": (
        figures(**TWO_FAILED, options={"on_error": "null"}, failed_attempts=failed(90.0, 311, "ValueError")),
        "311 calls were made in vain (mostly ValueError); Spark's log tells why"),
    "failed attempts, in which no row has failed": (
        figures(**TWO_FAILED, options={"on_error": "raise"},
            failed_attempts=failed(90.0, 311, by="no coordinator answers")),
        "311 calls were made in vain; an error ended them: no coordinator answers; Spark's log tells more"),
    "failed attempts, and little else": (
        figures(**LITTLE, latency=latencies(10, 0.05), failed_attempts=failed(7200.0, 9000, "ValueError")),
        "3 task attempts failed and took >99.9% of all time: 9,000 calls were made in vain (mostly ValueError); Spark"),
    "a short failed attempt, and little else": (
        figures(**LITTLE, latency=latencies(1, 0.05), failed_attempts=failed(0.1, 2, "ValueError")),
        "too short to tell: 1 call in 500 ms"),
    "lost executors": (
        figures(**BUSY, tasks={"succeeded": 1, "lost": 1}, failed_attempts={"seconds": 90.0, "calls": 311}),
        "1 task attempt failed and took 90% of all time: 311 calls were made in vain; their executors were lost"),
    "nothing but failures": (
        figures(seconds=0, latency=latencies(0, 0.0), tasks={"failed": 4},
            failed_attempts=failed(3.0, 12, "ValueError")),
        "nothing was completed: 4 task attempts failed and took 100% of all time: 12 calls were made in vain"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED)
def test_the_text_names_what_failed_and_the_change(case: str) -> None:
    function, told = FAILED[case]
    text = verdict(function).text
    assert told in text
    assert len(text) <= 300


# What the options must have for an advice, and what they must not have.
GIVEN = {"a shorter attempt_timeout=": "attempt_timeout", "shorter delays of retry=": "retry"}
GIVEN |= {"a higher rate_limit": "rate_limit", "a higher job_capacity": "job_capacity"}
GIVEN |= {"a lower rate_limit": "rate_limit", "a shorter timeout": "timeout"}
NOT_GIVEN = {
    r"(?<!shorter )attempt_timeout= ": ("attempt_timeout", 60.0),
    "with retry=": ("retry", "given"),
    "error_ttl=": ("store", "ResultStore.disk(error_ttl=60)"),  # and such failures are kept then
    "a rate_limit": ("rate_limit", "RateLimit(20)"),
    "a job_capacity": ("job_capacity", 40),
    r"on_error=\"null\"": ("on_error", "null"),
    r"ResultStore\.disk": ("store", "ResultStore.disk()"),
    "a plain def": ("kind", "def"),
    "unordered_wait": ("output_mode", "unordered"),
}
NUMBERED = ("capacity", "queue_size", "timeout", "attempt_timeout")
TOLD = {
    **{case: function for case, (function, *_) in VERDICTS.items()},
    **{f"failed: {case}": function for case, (function, _) in FAILED.items()},
    "hanging": figures(calls_busy=600.0, latency=latencies(0, 0.0), options={"attempt_timeout": None}),
    "hanging in spite of a limit": figures(
        calls_busy=600.0, latency=latencies(0, 0.0), options={"attempt_timeout": 9.0}
    ),
}


def with_option(function: dict[str, Any], option: str, value: Any) -> dict[str, Any]:
    return {**function, "options": {**function["options"], option: value}}


@pytest.mark.parametrize("advice", NOT_GIVEN)
def test_no_advice_is_what_is_set_already(advice: str) -> None:
    """Of every job that gets the advice, the verdict is another one when its options have it."""
    option, value = NOT_GIVEN[advice]
    advised = [function for function in TOLD.values() if re.search(advice, verdict(function).text)]
    assert advised
    for function in advised:
        if (option, value) == ("store", "ResultStore.disk(error_ttl=60)"):  # then no such call is made again
            function = {**function, "repeated_seconds": 0.0, "unkept_failures": 0}
        if option == "on_error":  # then no row ends a task
            function = {**function, "failed_attempts": {**function["failed_attempts"], "ended_by": {}}}
        text = verdict(with_option(function, option, value)).text
        assert not re.search(advice, text), text


@pytest.mark.parametrize("option", NUMBERED)
def test_no_advice_is_the_number_that_is_set_already(option: str) -> None:
    advised = [(function, re.search(rf"\b{option}=([\d_.]*\d)", verdict(function).text)) for function in TOLD.values()]
    assert any(found for _, found in advised)
    for function, found in advised:
        if found is not None:
            value = float(found[1].replace("_", ""))
            text = verdict(with_option(function, option, value if value % 1 else int(value))).text
            assert f"; {found[0]} " not in text, text


@pytest.mark.parametrize("advice", GIVEN)
def test_no_advice_changes_what_is_not_set(advice: str) -> None:
    """Shorter delays of retry= were advised to a job without any."""
    advised = [function for function in TOLD.values() if advice in verdict(function).text]
    assert advised
    assert all(function["options"].get(GIVEN[advice]) for function in advised)
    for function in advised:
        assert advice not in verdict(with_option(function, GIVEN[advice], None)).text
