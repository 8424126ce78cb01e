"""The summary tells in a few lines what a run did."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._observe.reports.summary import summary
from asyncudf._observe.reports.verdict import verdict
from tests.kit.plain_figures import figures, latencies, task

WEATHER = figures(
    function="weather #2",
    calls_busy=27.9,
    input=1.5,
    start_and_end=0.6,
    latency=latencies(12_345, 0.048, 1.2, slow=5),
    retries=30,
    timeouts=4,
    failures=3,
    dead_letters=3,
    errors={"ConnectionError": 31, "ValueError": 2},
    tasks={"succeeded": 3, "stopped": 0, "running": 1, "failed": 2, "lost": 0},
    failed_attempts={"seconds": 4.2, "calls": 311, "errors": {"ValueError": 2}},
    in_flight={"mean": 19.75, "peak": 20},
    queued={"mean": 40.2, "peak": 900},
    bytes_peak=6 << 20,
    ended=10.0,
)


def of(*functions: dict[str, Any], is_over: bool = True, seconds: float = 12.3) -> str:
    return summary({"began": 0.0, "seconds": seconds, "is_over": is_over, "functions": list(functions)})


def test_what_a_run_did() -> None:
    assert of(WEATHER).splitlines() == [
        "1 function in 12 s",
        "",
        "weather #2 (column): tasks: 3 succeeded, 1 running, 2 failed",
        "  rows      12,345 in, 12,345 out, 1,234/s",
        "  calls     12,345: p50 48 ms, p95 48 ms, p99 48 ms, longest 1.2 s",
        "  in flight 19.8 of 20 calls per task on average, 20 at most; 59.2 in the whole job on average",
        "  queued    40.2 rows per task on average, 900 at most; rows take 6 MiB at most",
        "  also      30 retries, 4 timeouts, 3 failed rows, 3 dead letters",
        "  errors    31 attempts with ConnectionError, 2 attempts with ValueError",
        "  failed    2 task attempts, which made 311 calls in 4.2 s (2 attempts with ValueError)",
        "  time      calls busy 93%, input 5%",
        "  verdict   93% of the time all slots of a task were busy and calls took 48 ms; try capacity=40: if",
        "            calls then take longer, the service is the limit (likely)",
    ]


@pytest.mark.parametrize(("status", "named"), [(429, "ThrottledError 429"), (None, "ThrottledError")])
def test_the_last_error_is_named(status: int | None, named: str) -> None:
    last = {"type": "ThrottledError", "status": status}
    text = of({**WEATHER, "errors": {"ConnectionError": 31, "ThrottledError": 2}, "last_error": last})
    told = " ".join(text.split())
    assert f"errors 31 attempts with ConnectionError, 2 attempts with ThrottledError; the last: {named} " in told


def test_what_did_not_happen_is_not_mentioned() -> None:
    """A job that went well has few lines."""
    text = of(figures(calls_busy=10.0, queued={"mean": 0, "peak": 0}))
    for title in ("also", "errors", "failed", "queued"):
        assert f"  {title} " not in text


def test_calls_that_have_not_come_back() -> None:
    """They are in no count and no latency, and yet they are shown."""
    running = {**task(600.0, status="running"), "timeline": [[600.0, 0, 12.0, 20.0]]}
    hangs = figures(calls_busy=600.0, latency=latencies(0, 0.0), tasks={"running": 1}, per_task=[running])
    text = of(hangs, is_over=False)
    assert "  calls     none has returned\n  in flight 12 now, 20 of 20 calls at most in a task\n" in text
    assert "no call has returned for 10 min" in text


def test_an_empty_run() -> None:
    assert of(seconds=0.5) == "no function with rows in 500 ms"
    nothing = figures(seconds=0, latency=latencies(0, 0.0), tasks={}, queued={"mean": 0.0, "peak": 0})
    assert "weather (column): no tasks\n  verdict   nothing ran" in of(nothing)


def test_a_run_that_goes_on_says_so() -> None:
    assert of(WEATHER, WEATHER, is_over=False).startswith("2 functions in 12 s, so far\n")


def test_the_verdict_is_that_of_the_run() -> None:
    """What `run.metrics` holds is not worked out again."""
    told = {"state": "input", "share": 1.0, "sureness": "likely", "text": "as it was said"}
    assert "as it was said (likely)" in of({**WEATHER, "verdict": told})
    assert verdict(WEATHER).text in " ".join(of(WEATHER).split())


@pytest.mark.parametrize("name", ["n" * 500, "zwölf 🎈", "a\nb\x1b[31m", "<script>"])
def test_odd_names_stay_in_their_place(name: str) -> None:
    """Of functions and of errors: short, in one line, and no terminal obeys them."""
    text = of({**WEATHER, "function": name, "errors": {name: 5, **{f"E{n}": 1 for n in range(90)}}})
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert "86 attempts with others" in " ".join(text.split())


@pytest.mark.parametrize("before", range(60, 90))
def test_numbers_stay_with_their_units(before: int) -> None:
    """Wherever a line breaks."""
    told = {"state": "input", "share": 1.0, "sureness": "sure", "text": "x" * before + " 12 ms more or less"}
    text = of({**WEATHER, "verdict": told})
    assert "12 ms" in text
    assert "\N{NO-BREAK SPACE}" not in text


def test_one_is_not_many() -> None:
    """1 retry, and not 1 retries."""
    told = {**WEATHER, "failed_attempts": {"seconds": 1.0, "calls": 1}}
    names = ("retries", "timeouts", "throttled", "failures", "dead_letters", "abandoned")
    for name in (*names, "store_hits", "store_misses"):
        told[name] = 1
    text = " ".join(of({**told, "shared_flights": 1}).split())
    assert (
        "also 1 retry, 1 timeout, 1 throttled attempt, 1 failed row, 1 dead letter, 1 abandoned call, "
        "1 store hit, 1 store miss, 1 row answered by another row's call"
    ) in text
    assert "failed 2 task attempts, which made 1 call in 1 s" in text


def test_a_sink_gives_no_results() -> None:
    """It has written the rows that neither failed nor were answered from the store."""
    sink = figures(function="post", entry_point="sink", rows=1000, failures=10, store_hits=90)
    (rows,) = (line for line in of(sink).splitlines() if line.startswith("  rows"))
    assert "1,000 in, 900 written" in rows


def test_what_calls_have_cost_is_told_with_that_of_failed_tasks() -> None:
    function = figures(spent={"USD": 1.5, "tokens": 12_000.0}, failed_attempts={"spent": {"USD": 0.3}})
    assert "  spent     1.80 USD, 12,000 tokens" in of(function).splitlines()
