"""The verdict says in a line what the limit is, and the one change, with what it would save."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._reports.verdict import verdict
from tests.kit.plain_figures import figures, latencies, task

BUSY = {"calls_busy": 9.3, "winding_down": 0.7, "in_flight": {"mean": 18.6, "peak": 20}}
ONE_SLOW = latencies(1000, 0.05, 5.0)

# What was found, and what is said of it.
TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "capacity": (
        figures(**BUSY, latency=latencies(1000, 0.048)),
        (
            "93% of the time all 20 slots of a task were busy and calls took 48 ms: the service or capacity is the "
            "limit; capacity=40 would about halve the time if the service can take it and "
            "Spark keeps up"
        ),
    ),
    "capacity of a small queue": (
        figures(**BUSY, options={"queue_size": 30}),
        (
            "93% of the time all 20 slots of a task were busy and calls took 50 ms: the service or capacity is the "
            "limit; capacity=40 with queue_size=60 would about halve the time if the service can take it and "
            "Spark keeps up"
        ),
    ),
    "capacity, and Spark is not much faster": (
        figures(calls_busy=9.0, output=1.0, in_flight={"mean": 18.5, "peak": 20}),
        "capacity=40 would about halve the time if the service can take it and Spark keeps up",
    ),
    "capacity that is not known": (
        figures(**BUSY, options={"capacity": None}),
        (
            "93% of the time all slots of a task were busy and calls took 50 ms: the service or capacity is the "
            "limit; twice the capacity would about halve the time if the service can take it and "
            "Spark keeps up"
        ),
    ),
    "one slot": (
        figures(calls_busy=9.0, input=1.0, options={"capacity": 1}, in_flight={"mean": 0.9, "peak": 1}),
        "90% of the time the only slot of a task was busy and calls took 50 ms",
    ),
    "as many calls as one thread can make": (
        figures(
            calls_busy=9.3, winding_down=0.7, latency=latencies(100_000, 0.002), in_flight={"mean": 18.6, "peak": 20}
        ),
        (
            "93% of the time all 20 slots of a task were busy and calls took 2 ms: the service, capacity or a task's "
            "one thread is the limit; capacity=40 would about halve the time if the service and the CPU can "
            "take it and Spark keeps up"
        ),
    ),
    "a queue that is full with one batch": (
        figures(**BUSY, options={"capacity": 20, "queue_size": 500, "batch_size": 100}),
        (
            "93% of the time 5 calls filled the queue of 500 rows, with 20 slots for calls; queue_size=2_000 would "
            "save about 70% of the time if the service can take it and "
            "Spark keeps up"
        ),
    ),
    "retries": (
        figures(**BUSY, retries=500, errors={"ConnectionError": 400, "ValueError": 100}),
        (
            "93% of the time all 20 slots of a task were busy, and 33% of the attempts were retries (mostly "
            "ConnectionError): what fails is the limit; without retries the time would be about 31% less; more "
            "capacity may make more calls fail"
        ),
    ),
    "timeouts": (
        figures(
            calls_busy=93,
            input=7,
            latency=latencies(1000, 0.05, 10.0, slow=180),
            timeouts=180,
            options={"timeout": 10.0},
            in_flight={"mean": 18.4, "peak": 20},
        ),
        (
            "93% of the time all 20 slots of a task were busy, 98% of that with calls that ran into timeout=10; "
            "timeout=0.1, twice what 99% of the others took, would save at most 90% of the time"
        ),
    ),
    "nothing but timeouts": (
        figures(
            calls_busy=93,
            input=7,
            latency=latencies(1000, 10.0),
            timeouts=1000,
            options={"attempt_timeout": 10.0},
            in_flight={"mean": 18.4, "peak": 20},
        ),
        (
            "93% of the time all 20 slots of a task were busy, 100% of that with calls that ran into "
            "attempt_timeout=10; a service that answers in time would save at most 93% of the time"
        ),
    ),
    "a blocking client": (
        figures(calls_busy=10.0, latency=latencies(1000, 0.01), in_flight={"mean": 1.0, "peak": 1}),
        (
            "100% of the time calls ran one after another, 10 ms each: they never give way, and capacity changes "
            "nothing; if a service is waited for, an asynchronous client, or a plain def (which runs in threads), "
            "would save at most 95% of the time; for computing only more cores help"
        ),
    ),
    "calls that compute": (
        figures(calls_busy=10.0, latency=latencies(1000_000, 1e-5), in_flight={"mean": 1.0, "peak": 20}),
        (
            "100% of the time calls ran one after another, 10 µs each: they never give way, and capacity changes "
            "nothing; twice the partitions on twice the cores would about halve the time"
        ),
    ),
    "one thread": (
        figures(calls_busy=10.0, latency=latencies(60_000, 0.001), in_flight={"mean": 6.0, "peak": 20}),
        (
            "100% of the time calls were begun without a pause, and still only 6 of 20 slots were in use: a task's "
            "one thread is the limit, and capacity changes nothing; twice the partitions on twice the cores would "
            "about halve the time"
        ),
    ),
    "a slow head": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, in_flight={"mean": 2.0, "peak": 20}),
        (
            "83% of the time slots were free, but the queue was full behind a slow row: half of the calls took 50 "
            "ms, the longest 5 s; unordered_wait, if the order of results does not matter, would save at most 83% of "
            "the time"
        ),
    ),
    "a slow head before a small queue": (
        figures(
            head_of_line=25.0,
            calls_busy=5.0,
            latency=ONE_SLOW,
            in_flight={"mean": 2.0, "peak": 20},
            options={"queue_size": 40},
            per_task=[task(30.0, longest=5.0, head_of_line=25.0)],
        ),
        (
            "83% of the time slots were free, but the queue was full behind a slow row: half of the calls took 50 "
            "ms, the longest 5 s; queue_size=2_000 would save at most 83% of the time"
        ),
    ),
    "a slow head before a queue that is large enough for most calls": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"queue_size": 1500}),
        "unordered_wait, if the order of results does not matter, would save at most",
    ),
    "a slow head that is most of the time": (
        figures(
            head_of_line=4.9,
            calls_busy=0.2,
            latency=ONE_SLOW,
            in_flight={"mean": 10.0, "peak": 20},
            per_task=[task(5.1, longest=5.0, head_of_line=4.9)],
        ),
        (
            "96% of the time slots were free, but the queue was full behind a slow row: half of the calls took 50 "
            "ms, the longest 5 s; attempt_timeout=0.15 with retry= would save at most 93% of the time"
        ),
    ),
    "a slow head between watermarks": (
        figures(head_of_line=25.0, calls_busy=5.0, latency=ONE_SLOW, options={"output_mode": "unordered"}),
        "fewer watermarks, or a shorter timeout, would save at most 83% of the time",
    ),
    "a head in back-off": (
        figures(
            head_of_line=25.0,
            calls_busy=5.0,
            latency=latencies(1000, 0.05, 50.0, slow=10),
            retries=10,
            waited=500.0,
            errors={"ValueError": 10},
            in_flight={"mean": 1.7, "peak": 20},
        ),
        "behind rows that waited to be tried again (mostly ValueError)",
    ),
    "large results behind a slow head": (
        figures(
            head_of_line=25.0,
            calls_busy=5.0,
            latency=ONE_SLOW,
            bytes_peak=1000,
            options={"max_buffered_bytes": 1001},
        ),
        "behind a slow row, with max_buffered_bytes=1_001 of results; unordered_wait",
    ),
    "Spark upstream": (
        figures(input=9.0, calls_busy=1.0, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time slots were free and no rows came: Spark upstream is the limit, and more capacity "
            "changes nothing; more partitions on more cores, or less work before the calls, would save at most 90% "
            "of the time"
        ),
    ),
    "the calls take nearly as long as the input": (
        figures(input=9.0, calls_busy=1.0, in_flight={"mean": 15.0, "peak": 20}),
        "would save at most 25% of the time",
    ),
    "an operator without rows": (
        figures(input=9.0, calls_busy=1.0, entry_point="operator"),
        "no rows came: Spark, or the function before, is the limit",
    ),
    "Spark downstream": (
        figures(output=9.0, calls_busy=1.0, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time results were not taken: Spark downstream is the limit, and more capacity here changes "
            "nothing; a faster reader (the next function, the write), or more partitions, would save at most 90% of "
            "the time"
        ),
    ),
    "permits": (
        figures(limit=9.0, calls_busy=1.0, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time calls waited for a permit: what you allow is the limit, and capacity changes nothing; "
            "a higher rate_limit, if the service allows it, would save at most 90% of the time"
        ),
    ),
    "a share of the calls of the job": (
        figures(limit=9.0, calls_busy=1.0, options={"job_capacity": 40}, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time calls waited for a share of job_capacity=40: what you allow is the limit, and capacity "
            "changes nothing; a higher job_capacity, if the service allows it, would save at most 90% of the time"
        ),
    ),
    "two limits": (
        figures(limit=9.0, calls_busy=1.0, options={"job_capacity": 40, "rate_limit": "given"}, throttled=1),
        "waited for a permit or a share of job_capacity=40, and the service asked for a pause 1 time: what you allow",
    ),
    "pauses that the service asked for": (
        figures(limit=9.0, calls_busy=1.0, throttled=12, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time calls were held back because the service asked for a pause 12 times: it allows fewer than "
            "were made, and capacity changes nothing; a rate_limit just below what it allows would spare the calls "
            "that it refuses"
        ),
    ),
    "a capacity that is found out": (
        figures(calls_busy=10.0, options={"capacity": "given"}, in_flight={"mean": 12.0, "peak": 31}),
        (
            "100% of the time as many calls were in flight as the service was found to take (12 in the mean of a task, "
            "31 at most), and they took 50 ms: the service is the limit; a larger maximum of capacity helps only if it "
            "was reached"
        ),
    ),
    "the breaker": (
        figures(breaker=9.0, calls_busy=1.0, errors={"OSError": 7}, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time the circuit breaker was open: the service failed too often (mostly OSError), and no "
            "option mends that; a service that is well would save at most 90% of the time"
        ),
    ),
    "a store": (
        figures(store=9.0, calls_busy=1.0, store_hits=9000, store_misses=1000, in_flight={"mean": 2.0, "peak": 20}),
        (
            "90% of the time rows waited for stored results: the store is the limit (9,000 of 10,000 rows were found "
            "there); a faster store, such as ResultStore.disk on a local disk, would save at most 90% of the time"
        ),
    ),
    "a store in vain": (
        figures(store=9.0, calls_busy=1.0, store_hits=1, store_misses=999, in_flight={"mean": 2.0, "peak": 20}),
        "(1 of 1,000 rows were found there); without store=, if rows do not come again, it would save at most 90%",
    ),
    "a blocked loop": (
        figures(blocked_loop=9.0, input=1.0, in_flight={"mean": 1.0, "peak": 1}),
        (
            "90% of the time (9 s) synchronous code kept the event loop from everything else: no other call could go "
            "on; if a service is waited for, an asynchronous client, or a plain def (which runs in threads), would "
            "save at most 90% of the time; for computing only more cores help"
        ),
    ),
    "a straggler": (
        figures(
            winding_down=4.9,
            calls_busy=2.5,
            latency=ONE_SLOW,
            per_task=[task(7.4, longest=5.0, winding_down=4.9)],
        ),
        (
            "66% of the time tasks waited for their last calls: half of all took 50 ms, the longest 5 s; "
            "attempt_timeout=0.15 with retry= would save at most 64% of the time"
        ),
    ),
    "many slow calls": (
        figures(winding_down=4.9, calls_busy=2.5, latency=latencies(1000, 0.05, 5.0, slow=100)),
        "calls that all take as long as half of them would save at most 66% of the time",
    ),
    "small partitions": (
        figures(winding_down=9.0, calls_busy=1.0, rows=100, tasks={"succeeded": 20}, ended=5.0),
        (
            "90% of the time free slots had nothing to start: a task had 5 rows for 20 slots; half as many "
            "partitions would about halve the time"
        ),
    ),
    "small partitions, all at once": (
        figures(winding_down=9.0, calls_busy=1.0, rows=100, tasks={"succeeded": 20}, ended=0.5),
        "all tasks ran at the same time: fewer of them would free cores, but not end earlier",
    ),
    "one small partition": (
        figures(winding_down=9.0, calls_busy=1.0, rows=10),
        "there is only one task: more rows in it, or faster calls, would use the slots better",
    ),
    "a resource that takes long to open": (
        figures(
            winding_down=9.0,
            calls_busy=3.0,
            tasks={"succeeded": 4},
            ended=6.0,
            per_task=[task(3.0, longest=0.1, winding_down=2.25)] * 4,
        ),
        (
            "75% of the time resources were opened and closed, 2.1 s in a task; half as many partitions would save "
            "about 36% of the time"
        ),
    ),
    "short tasks": (
        figures(winding_down=6.0, calls_busy=4.0, rows=2000, tasks={"succeeded": 20}, ended=5.0),
        (
            "60% of the time fewer rows were left than slots: tasks are short for their calls; half as many "
            "partitions would save about 30% of the time"
        ),
    ),
    "back-off at the end": (
        figures(
            winding_down=9.0,
            calls_busy=1.0,
            latency=latencies(100, 0.5),
            retries=100,
            waited=40.0,
            in_flight={"mean": 1, "peak": 20},
        ),
        "90% of the time the last rows of a task waited to be tried again; shorter delays of retry= would save at most",
    ),
    "skew": (
        figures(
            input=60.0,
            calls_busy=50.0,
            rows=20_000,
            tasks={"succeeded": 11},
            ended=70.0,
            in_flight={"mean": 10, "peak": 20},
            per_task=[*[task(5.0, rows=500)] * 10, task(60.0, rows=15_000)],
        ),
        (
            "55% of the time went to input, but one task of 11 took 1 min, half of them at most 5 s, as it had "
            "15,000 of 20,000 rows; partitions of equal size would save at most 71% of the time; calls busy took 45%"
        ),
    ),
    "a slow host": (
        figures(
            input=60.0,
            calls_busy=50.0,
            tasks={"succeeded": 11},
            ended=70.0,
            in_flight={"mean": 10, "peak": 20},
            per_task=[*[task(5.0)] * 10, task(60.0)],
        ),
        "with no more rows than others (partition 0); if it were as fast as others that would save at most 71%",
    ),
    "two that cost about the same": (
        figures(input=5.2, output=4.8, in_flight={"mean": 2.0, "peak": 20}),
        "would save at most 52% of the time; output took 48%",
    ),
    "too few calls": (
        figures(calls_busy=9.0, input=1.0, latency=latencies(49, 1.5)),
        "too short to tell: 49 calls in 10 s, 90% of it calls busy",
    ),
    "too short": (
        figures(calls_busy=0.9, latency=latencies(5000, 0.001)),
        "too short to tell: 5,000 calls in 900 ms, 100% of it calls busy",
    ),
    "nothing": (
        figures(seconds=0, latency=latencies(0, 0.0)),
        "nothing ran: no task had a row for it, or none has told of itself yet",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_names_the_limit_and_the_change(case: str) -> None:
    """One line, as a person would say it."""
    function, told = TEXTS[case]
    text = verdict(function).text
    assert told in text
    assert len(text) <= 300
