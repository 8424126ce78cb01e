"""Jobs that were made slow on purpose: the verdict names the reason, and what it promises comes true."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import AsyncStream, CircuitBreaker, RateLimit, RetryStrategy, http
from asyncudf._reports.summary import summary
from asyncudf._reports.verdict import verdict
from tests.kit.runs import run_of_a_function, run_of_a_stream
from tests.kit.thorough import examples

Figures = dict[str, Any]


async def usual(n: int) -> int:
    await asyncio.sleep(0.05)
    return n


async def sometimes_slow(n: int) -> int:
    await asyncio.sleep(5.0 if n % 300 == 1 else 0.05)
    return n


async def blocking(n: int) -> int:
    asyncio.get_running_loop().block(0.06)  # type: ignore[attr-defined]
    return n


async def briefly_blocking(n: int) -> int:
    asyncio.get_running_loop().block(0.004)  # type: ignore[attr-defined]
    return n


async def quick(n: int) -> int:
    await asyncio.sleep(0.01)
    return n


async def slow(n: int) -> int:
    await asyncio.sleep(0.5)
    return n


async def failing(n: int) -> int:
    await asyncio.sleep(0.05)
    if n % 2:
        raise ConnectionError("refused")
    return n


async def dead_for_a_minute(n: int) -> int:
    await asyncio.sleep(0.05)
    if 1 < asyncio.get_running_loop().time() < 60:
        raise ConnectionError("refused")
    return n


def refusing() -> Figures:
    accepted: Counter[int] = Counter()  # by second

    async def strict(n: int) -> int:
        now = asyncio.get_running_loop().time()
        accepted[int(now)] += 1
        await asyncio.sleep(0.05)
        if accepted[int(now)] > 50:
            raise http.ThrottledError(429, retry_after=int(now) + 1 - now)
        return n

    return run_of_a_function(strict, range(1000), capacity=20)


def chain() -> list[Figures]:
    def build(stream: AsyncStream) -> AsyncStream:
        return stream.ordered_wait(quick, capacity=10).ordered_wait(slow, capacity=10)

    return run_of_a_stream(build, [{"n": n} for n in range(3000)], "n int", capacity=10)


JOBS: dict[str, tuple[Callable[[], Figures], str, str]] = {
    "capacity": (
        lambda: run_of_a_function(usual, range(1000), capacity=20),
        "calls_busy",
        "calls took 50 ms from first to last: capacity is the limit; capacity=40 would about halve the time",
    ),
    "slow head of the line": (
        lambda: run_of_a_function(sometimes_slow, range(1200), capacity=20, queue_size=40),
        "head_of_line",
        "the queue was full behind a slow row: half of the calls took 50 ms, the longest 5 s; queue_size=2_000 would",
    ),
    "slow input": (
        lambda: run_of_a_function(usual, range(1000), capacity=20, every=0.5, batch=20),
        "input",
        "the query before the function is the limit, and more capacity changes nothing",
    ),
    "slow reader": (lambda: chain()[0], "output", "the next function, is the limit"),
    "what the slow reader says": (lambda: chain()[1], "calls_busy", "all 10 slots of a task were busy"),
    "blocked loop": (
        lambda: run_of_a_function(blocking, range(100)),
        "blocked_loop",
        "synchronous code blocked the event loop",
    ),
    "blocked loop, too short to be seen": (
        lambda: run_of_a_function(briefly_blocking, range(1000)),
        "calls_busy",
        "calls ran one after another, 4 ms each",
    ),
    "two rates": (
        lambda: run_of_a_function(
            usual, range(1000), capacity=20, rate_limit=[RateLimit(20), RateLimit(600, per="minute")]
        ),
        "limit",
        'for RateLimit(600, per="minute"): this is the limit, and capacity changes nothing; a higher one',
    ),
    "rate": (
        lambda: run_of_a_function(usual, range(1000), capacity=20, rate_limit=RateLimit(50)),
        "limit",
        "calls waited for a permit: what you allow is the limit",
    ),
    "dead service": (
        lambda: run_of_a_function(dead_for_a_minute, range(1000), capacity=20, breaker=CircuitBreaker()),
        "breaker",
        "the circuit breaker was open: the service failed too often (mostly ConnectionError)",
    ),
    "refusals": (refusing, "limit", "calls were held back because the service refused "),
    "straggler": (
        lambda: run_of_a_function(sometimes_slow, range(905), capacity=20),
        "winding_down",
        "tasks waited for their last calls: half of all took 50 ms, the longest 5 s; attempt_timeout=",
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_the_verdict_names_why_a_job_is_slow(job: str) -> None:
    """Each of them ran through the engine; nobody wrote down its figures."""
    run, state, told = JOBS[job]
    found = verdict(run())
    only_if = ("capacity=", "if a second attempt", "if the service", "if it bounds")
    is_likely = any(words in found.text for words in only_if)
    assert (found.state, found.sureness) == (state, "likely" if is_likely else "sure")
    assert told in found.text


def promised(figures: Figures) -> float:
    """The part of the time that the change would save at most."""
    text = verdict(figures).text
    if "save nearly all" in text:
        return 1.0
    return int(re.search(r"save at most (\d+)%", text)[1]) / 100  # type: ignore[index]


def test_twice_the_capacity_halves_the_time() -> None:
    """What the verdict on a busy job promises, if the service takes it."""
    once = run_of_a_function(usual, range(1000), capacity=20)
    twice = run_of_a_function(usual, range(1000), capacity=40)
    assert twice["seconds"] == pytest.approx(once["seconds"] / 2)


def test_twice_the_capacity_saves_nothing_where_rows_come_just_in_time() -> None:
    """No figure tells them from those that come at once: so it is said with an if."""
    once = run_of_a_function(usual, range(1000), capacity=10, every=0.05, batch=10)
    twice = run_of_a_function(usual, range(1000), capacity=20, every=0.05, batch=10)
    assert twice["seconds"] == pytest.approx(once["seconds"])
    assert verdict(once).text.endswith("if the service takes so many at once and Spark keeps up")


@pytest.mark.parametrize("change", [{"queue_size": 2000}, {"output_mode": "unordered", "queue_size": 40}])
def test_nothing_saves_more_than_promised_behind_a_slow_head(change: dict[str, Any]) -> None:
    """And it does save a good part of it."""
    before = run_of_a_function(sometimes_slow, range(1200), capacity=20, queue_size=40)
    after = run_of_a_function(sometimes_slow, range(1200), capacity=20, **change)
    saved = 1 - after["seconds"] / before["seconds"]
    assert promised(before) / 2 < saved <= promised(before) + 0.01


@pytest.mark.parametrize("longest", [5.0, 5.2, 8.0, 20.0])
def test_a_larger_queue_is_the_answer_however_slow_the_head_is(longest: float) -> None:
    """A queue of so many rows does not fill up during the longest call."""

    async def call(n: int) -> int:
        await asyncio.sleep(longest if n % 300 == 1 else 0.05)
        return n

    before = run_of_a_function(call, range(1200), capacity=20, queue_size=40)
    advised = int(re.search(r"queue_size=([\d_]+) would", verdict(before).text)[1])  # type: ignore[index]
    assert 20 * longest / 0.05 <= advised <= 1.25 * 20 * longest / 0.05
    after = run_of_a_function(call, range(1200), capacity=20, queue_size=advised)
    assert promised(before) / 2 < 1 - after["seconds"] / before["seconds"] <= promised(before) + 0.01


def each_fails_once(delay: float, queue_size: int) -> Figures:
    tried = set[int]()

    async def call(n: int) -> int:
        await asyncio.sleep(0.05)
        if n not in tried:
            tried.add(n)
            raise ConnectionError("refused")
        return n

    retry = RetryStrategy.fixed_delay(attempts=2, delay=delay)
    return run_of_a_function(call, range(2500), capacity=20, queue_size=queue_size, retry=retry)


def test_a_queue_full_of_rows_in_back_off_is_large_enough_for_all_of_them() -> None:
    """Half of the calls take as long as the longest, and still they need more places than slots."""
    before = each_fails_once(5.0, 250)
    advised = int(re.search(r"queue_size=([\d_]+) would", verdict(before).text)[1])  # type: ignore[index]
    saved = 1 - each_fails_once(5.0, advised)["seconds"] / before["seconds"]
    assert promised(before) / 2 < saved <= promised(before) + 0.01


def test_where_a_larger_queue_saves_little_rows_in_back_off_need_shorter_delays() -> None:
    """Another order of results would not help them: they keep their places."""
    before = each_fails_once(5.0, 625)
    assert "shorter delays of retry= would save at most" in verdict(before).text
    after = each_fails_once(0.25, 625)
    assert promised(before) / 2 < 1 - after["seconds"] / before["seconds"] <= promised(before) + 0.01


def test_input_that_comes_at_once_saves_no_more_than_promised() -> None:
    """Here all of it."""
    before = run_of_a_function(usual, range(1000), capacity=20, every=0.5, batch=20)
    after = run_of_a_function(usual, range(1000), capacity=20)
    assert promised(before) - 0.01 <= 1 - after["seconds"] / before["seconds"] <= promised(before) + 0.01


def test_a_client_that_does_not_block_saves_no_more_than_promised() -> None:
    """With all slots in use, where there was one call at a time."""
    before = run_of_a_function(blocking, range(2000), capacity=20)
    after = run_of_a_function(usual, range(2000), capacity=20)
    assert 1 - after["seconds"] / before["seconds"] == pytest.approx(promised(before), abs=0.02)


@settings(max_examples=examples(0.4))
@given(
    seed=st.integers(0, 10**6),
    usual=st.sampled_from([0.01, 0.05, 0.5]),
    longest=st.sampled_from([0.1, 1.0, 5.0]),
    slow=st.sampled_from([0.0, 0.003, 0.1]),
    capacity=st.sampled_from([2, 10, 50]),
    queue=st.sampled_from([None, 1, 2, 10]),
    every=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    rate=st.sampled_from([None, None, 50, 400]),
)
def test_no_change_of_any_job_saves_more_than_promised_at_most(
    seed: int,
    usual: float,
    longest: float,
    slow: float,
    capacity: int,
    queue: int | None,
    every: float,
    rate: int | None,
) -> None:
    """Whatever is advised: it is done, and the time compared."""
    rng = random.Random(seed)
    latencies = [longest if rng.random() < slow else usual * rng.uniform(0.5, 1.5) for _ in range(400)]

    async def call(n: int) -> int:
        await asyncio.sleep(latencies[n])
        return n

    options: dict[str, Any] = {"capacity": capacity, "queue_size": queue and queue * capacity, "every": every}
    options["rate_limit"] = rate and RateLimit(rate)
    before = run_of_a_function(call, range(400), batch=20, **options)
    text = verdict(before).text
    if "at most" not in text:
        return
    if change := re.search(r"queue_size=([\d_]+) would", text):
        options["queue_size"] = int(change[1])
    elif "unordered_wait" in text:
        options["output_mode"] = "unordered"
    elif "work before the calls" in text:
        options["every"] = 0.0
    elif "a higher rate_limit" in text:
        options["rate_limit"] = None
    after = run_of_a_function(call, range(400), batch=20, **options)
    assert 1 - after["seconds"] / before["seconds"] <= promised(before) + 0.01


def test_errors_that_are_tried_again_are_the_limit() -> None:
    """More capacity would only make more of them."""
    retry = RetryStrategy.fixed_delay(attempts=3, delay=0.001)
    figures = run_of_a_function(failing, range(1000), capacity=20, retry=retry, on_error="null")
    assert "50% of the attempts were retries (mostly ConnectionError): what fails is the limit" in verdict(figures).text


DOCS = Path(__file__).parents[2] / "docs"
NOT_ON_THE_PAGE = {"straggler", "two rates", "what the slow reader says"}


@pytest.mark.parametrize("job", [job for job in JOBS if job not in NOT_ON_THE_PAGE])
def test_the_page_says_what_the_verdict_says(job: str) -> None:
    """Word for word, but for line breaks."""
    quoted = " ".join(line.removeprefix("> ") for line in (DOCS / "slow.md").read_text().splitlines())
    assert verdict(JOBS[job][0]()).text in quoted


def test_the_page_shows_a_summary_as_it_is() -> None:
    """Of the slow head of the line, below the line that tells of the run."""
    told = summary({"seconds": 1.0, "is_over": True, "functions": [JOBS["slow head of the line"][0]()]})
    assert told.split("\n", 2)[2] in (DOCS / "observe.md").read_text()
