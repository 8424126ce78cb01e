"""A dry run's report says how many calls, why, how long and what they cost; each line fits a terminal."""

import dataclasses
from typing import Any, get_args

from asyncudf import DryRun
from asyncudf._observe.planned_calls import Bounds, Reason, RowCosts
from asyncudf._observe.reports.dry_run import WHY, Mention

MENTION = Mention(
    function="weather",
    entry_point="column",
    columns=("city",),
    rows=Bounds(100, 100),
    evaluations=Bounds(1, 1),
    calls=Bounds(100, 100),
    distinct=None,
    has_store=False,
    rows_per_call=1,
    capacity=10,
    job_capacity=None,
    has_rate_limit=False,
    tasks=2,
    waves=Bounds(5.0, 5.0),
    seconds=None,
    cost=None,
    reasons=(),
)


def run(*mentions: Mention, **changes: Any) -> DryRun:
    plain = DryRun(mentions, latency=None, price=None, counting="exact", ambiguous=(), is_hidden=False)
    return dataclasses.replace(plain, **changes)


def mention(**changes: Any) -> Mention:
    return dataclasses.replace(MENTION, **changes)


def test_a_query_without_functions() -> None:
    assert str(run()) == "0 calls, in 0 mentions of async functions; nothing was called"
    assert run().calls == Bounds(0, 0)


def test_a_mention_in_words() -> None:
    sorted_twice = mention(evaluations=Bounds(2, 2), calls=Bounds(200, 200), distinct=7, reasons=("sorted",))
    assert str(run(sorted_twice)).splitlines() == [
        "200 calls, in 1 mention of async functions; nothing was called",
        "",
        "weather(city), column: 200 calls",
        "  rows      100, evaluated 2 times",
        "  arguments 7 distinct: a store would save about 193 of the calls",
        "  time      5 x the latency of a call (2 tasks at a time, 10 calls in flight in each); latency=",
        "            gives seconds",
        "  why       Spark evaluates what is below a sort twice, as it samples it first to find the ranges,",
        "            and partitions far larger than the mean a third time; persist() before the sort, or a",
        "            store, avoids the repeated calls",
    ]


def test_with_a_store_the_headline_says_what_to_expect() -> None:
    """It had said "0 to 2,000 calls; 0 s to 10 s; costs 0.00 to 20.00" of 200 distinct arguments."""
    stored = mention(
        calls=Bounds(0, 2000, Bounds(200, 200)),
        seconds=Bounds(0.0, 10.0, Bounds(1.0, 1.0)),
        distinct=200,
        has_store=True,
        reasons=("sorted", "stored"),
    )
    told = run(stored, latency=0.1, price=0.01)
    assert str(told).splitlines()[:3] == [
        "about 200 calls while the store is empty, at most 2,000, in 1 mention of async functions; nothing",
        "was called; about 1 s, at most 10 s at 100 ms a call; costs about 2.00, at most 20.00",
        "",
    ]
    assert "  arguments 200 distinct\n" in str(told)
    assert "persist()" not in str(told), "the sort has a store already"
    other = run(stored, mention(seconds=Bounds(5.0, 5.0)), latency=0.1, price=0.01)
    assert other.calls == Bounds(100, 2100, Bounds(300, 300))
    assert other.seconds == Bounds(5.0, 15.0, Bounds(5.0, 6.0))
    assert other.cost == Bounds(1.0, 21.0, Bounds(3.0, 3.0))
    assert str(other).startswith("about 300 calls while the store is empty, at least 100, at most 2,100, in 2 mentions")
    unlimited = run(mention(calls=Bounds(0, None, Bounds(0, 200)), waves=Bounds(0.0, None, Bounds(0.0, 10.0))))
    assert str(unlimited).startswith("about 0 to 200 calls while the store is empty, with no upper bound, in 1 mention")


def test_the_time_names_the_limit_that_decides() -> None:
    """It had named the 10 calls of each task where job_capacity= allowed 4 of all."""
    limited = mention(seconds=Bounds(5.0, 5.0), job_capacity=4)
    assert "5 s (4 calls in flight in the whole job)" in str(run(limited, latency=0.2))
    ample = mention(seconds=Bounds(5.0, 5.0), job_capacity=20)
    assert "5 s (2 tasks at a time, 10 calls in flight in each)" in str(run(ample, latency=0.2))
    paced = mention(seconds=Bounds(99.0, 99.0), has_rate_limit=True)
    assert "(2 tasks at a time, 10 calls in flight in each; rate_limit= included)" in str(run(paced, latency=0.2))
    without = " ".join(str(run(dataclasses.replace(paced, seconds=None))).split())
    assert "in each), or longer under rate_limit=; latency= gives seconds" in without


def test_the_time_says_which_limit_is_left_out_and_which_rows_are() -> None:
    """Of a limit whose cost is a function it was said that the time included it."""
    left_out = mention(seconds=Bounds(9.0, None), has_rate_limit=True, costs=RowCosts(left_out="its rows are secret"))
    assert "a rate_limit= is not included: its rows are secret)" in " ".join(str(run(left_out, latency=0.2)).split())
    failed = mention(seconds=Bounds(9.0, 9.0), has_rate_limit=True, costs=RowCosts((5.0,), 5, 1, "OSError: a\nb"))
    text = " ".join(str(run(failed, latency=0.2)).split())
    assert "rate_limit= included, without 1 row whose cost failed: OSError: a b)" in text


def test_bounds_add_up_and_what_is_not_known_stays_so() -> None:
    bounded = mention(calls=Bounds(0, 100))
    assert run(MENTION, bounded).calls == Bounds(100, 200)
    assert "100 to 200 calls" in str(run(MENTION, bounded))
    unknown = mention(calls=Bounds(10, None), waves=Bounds(1.0, None))
    assert run(MENTION, unknown).calls == Bounds(110, None)
    assert str(run(MENTION, unknown)).startswith("at least 110 calls")
    assert run(MENTION, is_hidden=True).calls == Bounds(100, None)
    assert "an unknown number of calls" in str(run(mention(calls=Bounds(0, None), waves=Bounds(0.0, None))))


def test_the_whole_takes_as_long_as_the_slowest_at_least_and_as_all_together_at_most() -> None:
    slow, quick = mention(seconds=Bounds(5.0, 9.0)), mention(seconds=Bounds(1.0, 2.0))
    assert run(slow, quick, latency=1.0).seconds == Bounds(5.0, 11.0)
    assert run(slow, mention(seconds=None), latency=1.0).seconds is None
    assert "5 s to 11 s at 1 s a call" in str(run(slow, quick, latency=1.0))


def test_money() -> None:
    assert run(MENTION, price=0.25).cost == Bounds(25.0, 25.0)
    assert "costs 25.00" in str(run(MENTION, price=0.25))
    assert "costs 0.0003" in str(run(MENTION, price=0.000003))
    assert "costs 0.00" in str(run(MENTION, price=0))


def test_every_reason_has_its_words_and_every_line_fits() -> None:
    text = str(run(mention(reasons=get_args(Reason), function="f" * 90), is_hidden=True))
    assert text.count("  why ") == len(WHY) == len(get_args(Reason))
    assert max(map(len, text.splitlines())) <= 100


def test_names_cannot_break_lines() -> None:
    assert "\n\n\n" not in str(run(mention(function="a\n\n\nb", columns=("c\n\n\nd",)), ambiguous=("x\n\n\ny",)))


def test_a_function_that_cannot_be_read_and_one_that_is_named_twice() -> None:
    unread = mention(entry_point="unknown", capacity=None, waves=None, columns=())
    assert "could not be unpickled" in str(run(unread))
    assert "Several functions are called f" in str(run(MENTION, ambiguous=("f",)))
    assert "Spark's estimate" in str(run(MENTION, counting="estimate"))
    assert "about 7 distinct" in str(run(mention(distinct=7), counting="approximate"))
